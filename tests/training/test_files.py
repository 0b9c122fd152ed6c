"""Files and folders are written whole or not at all: interrupts, full disks, links, devices."""

import errno
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mmspec.files import SEAL, foreign, remove_sides, save_sealed, save_text, save_whole
from mmspec.training.work import save_tensors

ENDS = [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device"), ValueError("a format of its own")]


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
def test_a_file_that_was_not_finished_is_the_old_one(tmp_path: Path, end: BaseException) -> None:
    def write(side: Path) -> None:
        side.write_text("hal")
        raise end

    for before in ([], ["kept.json"]):
        with pytest.raises(type(end)):
            save_whole(tmp_path / "kept.json", write)
        assert listed(tmp_path) == before
        save_text(tmp_path / "kept.json", "whole – ganz")
    assert (tmp_path / "kept.json").read_text(encoding="utf-8") == "whole – ganz"


@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
def test_a_folder_that_was_not_finished_is_the_old_one(tmp_path: Path, end: BaseException) -> None:
    folder = tmp_path / "model.v1"
    save_sealed(folder, lambda side: (side.mkdir(), (side / "old").write_text("1")))

    def write(side: Path) -> None:
        side.mkdir()
        (side / "new").write_text("2")
        raise end

    with pytest.raises(type(end)):
        save_whole(folder, write)
    assert listed(tmp_path) == [SEAL, "model.v1", "old"]
    save_whole(folder, lambda side: (side.mkdir(), (side / "new").write_text("2")))
    assert listed(tmp_path) == ["model.v1", "new"]


@pytest.mark.parametrize(
    "change", ["none was sealed", "added", "added deeper", "changed", "removed", "a link", "empty"]
)
def test_a_folder_that_holds_somebody_elses_work_is_not_replaced(tmp_path: Path, change: str) -> None:
    folder, inner = tmp_path / "model", tmp_path / "model" / "inner"

    def write(side: Path) -> None:
        (side / "inner").mkdir(parents=True)
        (side / "inner" / "weights").write_text("ours")

    (save_whole if change == "none was sealed" else save_sealed)(folder, write)
    if change == "changed":
        (inner / "weights").write_text("hers")
    elif change == "removed":
        (inner / "weights").unlink()
    elif change == "a link":
        (folder / "link").symlink_to(tmp_path)
    elif change == "empty":
        (folder / "empty").mkdir()
    elif change.startswith("added"):
        ((inner if "deeper" in change else folder) / "notes.md").write_text("hers")
    before = {path: path.is_file() and path.read_text() for path in folder.rglob("*")}
    for save in (save_whole, save_sealed):
        with pytest.raises(FileExistsError, match=r"is not replaced, since .* is somebody else's, or was changed"):
            save(folder, write)
    assert {path: path.is_file() and path.read_text() for path in folder.rglob("*")} == before
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(IsADirectoryError):
        save_text(folder, "a file in the place of a folder")


def test_a_folder_that_was_left_alone_is_replaced(tmp_path: Path) -> None:
    for text in ("1", "2"):
        save_sealed(tmp_path / "model", lambda side, text=text: (side.mkdir(), (side / text).write_text(text)))
    assert listed(tmp_path) == [SEAL, "2", "model"] and foreign(tmp_path / "model") == []


def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rename = tmp_path / "model", os.rename
    save_sealed(folder, lambda side: (side.mkdir(), (side / "old").write_text("1")))

    def stopped(source: Path, target: Path) -> None:
        if target == folder and ".old" not in source.name:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", stopped)
    with pytest.raises(KeyboardInterrupt):
        save_whole(folder, lambda side: side.mkdir())
    assert listed(tmp_path) == [SEAL, "model", "old"]


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_new_files_have_the_permissions_of_the_umask(tmp_path: Path, umask: int) -> None:
    """Also those that a library makes for their owner alone; one that is executable stays so."""

    def alone(side: Path) -> None:
        save_file({"a": torch.zeros(2)}, side)
        side.chmod(0o600)  # as safetensors does in some versions

    def folder(side: Path) -> None:
        (side / "inner").mkdir(parents=True)
        alone(side / "inner" / "a.safetensors")
        (side / "run.sh").touch()
        (side / "run.sh").chmod(0o700)

    before = os.umask(umask)
    try:
        save_whole(tmp_path / "a.safetensors", alone)
        save_whole(tmp_path / "model", folder)
    finally:
        os.umask(before)
    new = [tmp_path / "a.safetensors", tmp_path / "model" / "inner" / "a.safetensors"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in new] == [0o666 & ~umask] * 2
    assert stat.S_IMODE((tmp_path / "model" / "run.sh").stat().st_mode) == 0o700 | (0o666 & ~umask)
    assert listed(tmp_path) == ["a.safetensors", "a.safetensors", "inner", "model", "run.sh"]
    new[0].chmod(0o640)
    save_whole(new[0], alone)
    assert stat.S_IMODE(new[0].stat().st_mode) == 0o640, "an existing file keeps its own"


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """No file grows beyond `size` bytes: what a full disk does to whoever writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_costs_nothing_but_the_new_tensors(tmp_path: Path) -> None:
    path = tmp_path / "codes.pt"
    save_tensors(path, torch.arange(3))
    with small_disk(10_000), pytest.raises(OSError, match=r"codes\.pt'"):
        save_tensors(path, torch.zeros(100_000))
    assert torch.load(path, weights_only=True).tolist() == [0, 1, 2] and listed(tmp_path) == ["codes.pt"]


def test_a_full_disk_is_one_whoever_writes(tmp_path: Path) -> None:
    """safetensors raises an error of its own, which users would take for a fault."""

    def write(side: Path) -> None:
        side.mkdir()
        save_file({"a": torch.zeros(100_000)}, side / "a.safetensors")

    with small_disk(10_000), pytest.raises(OSError, match=r"File too large: '.*/model'$"):
        save_whole(tmp_path / "model", write)
    assert listed(tmp_path) == []


def test_a_folder_that_is_not_there_is_said_by_the_name_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*/none/kept\.json'$"):
        save_text(tmp_path / "none" / "kept.json", "1")


def test_links_go_on_and_devices_are_written_to_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "elsewhere" / "real.json")
    save_text(link, "1")
    real = tmp_path / "elsewhere" / "real.json"
    assert link.is_symlink() and real.read_text() == "1"
    real.chmod(0o640)
    save_text(link, "2")
    assert real.read_text() == "2" and stat.S_IMODE(real.stat().st_mode) == 0o640
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        save_text(pipe, "through")
        assert os.read(reader, 100) == b"through" and stat.S_ISFIFO(pipe.stat().st_mode)
    finally:
        os.close(reader)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    for name in (".checkpoint.77.part.pt", ".model.77.part", ".hidden", "a.part.pt", ".film.part"):
        (tmp_path / name).write_text("half")
    (tmp_path / ".folder.77.part").mkdir()
    remove_sides(tmp_path)
    assert listed(tmp_path) == [".film.part", ".hidden", "a.part.pt"], "another program's are left alone"
