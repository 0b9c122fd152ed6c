"""Work folders of training: for one run at a time and for one recipe; damaged files are named.

A folder holds the recipe of its contents in `recipe.json`. A run with another recipe is refused, because a stage that
resumed from these contents, or was skipped because of them, would belong to neither recipe. A run holds a lock on its
folder, which the operating system releases however the run ends.
"""

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from mmspec.files import remove_sides, save_text, save_whole
from mmspec.registry.printable import shown

RECIPE, LOCK = "recipe.json", ".lock"
Made = TypeVar("Made", Tensor, tuple[Tensor, Tensor])


@contextmanager
def claimed(folder: Path, recipe: Mapping[str, Any]) -> Iterator[None]:
    """Inside the block, the folder, made if missing, belongs to this run; `recipe`, which is written into it, is
    everything that decides the contents, by name.
    """
    refuse_foreign(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        remove_sides(folder)
        _agree(folder, json.loads(json.dumps(recipe)))
        yield


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder with files in it that are no run's."""
    held = sorted(path.name for path in folder.glob("[!.]*"))  # hidden are the lock, and what a killed run left
    if held and RECIPE not in held:
        raise ValueError(
            f"{folder} holds {shown(held[0])!r} and no {RECIPE}: its files are not those of a run; take another folder"
        )


def save_tensors(path: Path, value: Any) -> None:
    """`torch.save`, whole or not at all. It writes from memory, so that a full disk raises a plain `OSError`."""
    content = io.BytesIO()
    torch.save(value, content)
    save_whole(path, lambda side: side.write_bytes(content.getbuffer()))


def load_tensors(path: Path) -> Any:
    """Load a file of `save_tensors`."""
    with damaged(path):
        with zipfile.ZipFile(path) as parts:
            if changed := parts.testzip():  # torch writes a checksum of every part, and does not compare it
                raise ValueError(f"{changed} is not as it was written")
        return torch.load(path, map_location="cpu", weights_only=True)


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    """Report every error inside the block as damage of a file, except where memory or disk ran out."""
    try:
        yield
    except (OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # unpicklers raise whatever the bytes make them
        what = "empty" if path.is_file() and not path.stat().st_size else "damaged, or of something else"
        raise ValueError(f"{path} is {what}; delete it, and the same command makes it anew") from error


def cached(path: Path, of: Iterable[Tensor], make: Callable[[], Made]) -> Made:
    """A tensor, or two, that take long to `make`; they are computed again if their inputs `of` changed, such as the
    weights of an encoder and the data to encode.
    """
    now = digest(of)
    if path.is_file():
        kept = load_tensors(path)
        if isinstance(kept, dict) and kept.get("of") == now and isinstance(kept.get("made"), Tensor | tuple):
            stored: Made = kept["made"]
            return stored
    computed = make()
    save_tensors(path, {"of": now, "made": computed})
    return computed


def digest(of: Iterable[Tensor | str]) -> str:
    """A hash of tensors and texts: 16 hexadecimal digits of SHA-256."""
    hashed = hashlib.sha256()
    for one in of:
        if isinstance(one, Tensor):
            hashed.update(f"{one.dtype} {list(one.shape)}".encode())
            # An expanded tensor is flattened without a copy, and cannot be viewed as bytes then.
            hashed.update(one.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().data)
        else:
            hashed.update(f"{len(one)} {one}".encode())
    return hashed.hexdigest()[:16]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    import fcntl

    with open(folder / LOCK, "a+") as lock:  # the file stays: a lock on a removed file excludes no other run
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            who = lock.read().strip() or "another"
            raise ValueError(f"process {who} is at work in {folder}; wait for it, or take another folder") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _agree(folder: Path, recipe: dict[str, Any]) -> None:
    """Write the recipe into a new folder; refuse contents of another one, by the names that this one has."""
    file = folder / RECIPE
    if not file.is_file():
        save_text(file, json.dumps(recipe, indent=1) + "\n")
        return
    with damaged(file):
        held = dict(json.loads(file.read_text(encoding="utf-8")))
    other = [name for name in recipe if held.get(name) != recipe[name]]
    if other:
        differs = ", ".join(f"{name} {held.get(name)} there, {recipe.get(name)} here" for name in other)
        raise ValueError(f"{folder} holds work of another recipe ({differs}); delete it, or take another folder")
