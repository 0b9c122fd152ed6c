"""Published checkpoints that are damaged or of something else: `from_official`, loader by loader."""

import io
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

LOADERS = {
    "llamagen": "mmspec_image.models.llamagen:LlamaGenTransformer",
    "vq": "mmspec.kits.pictures.models.vq:LlamaGenVQ",
    "oasis": "mmspec_video.models.oasis:OasisDiT",
    "oasis-vae": "mmspec_video.models.oasis_vae:OasisVAE",
}


def loader(name: str) -> Callable[..., Any]:
    import importlib

    module, _, kind = LOADERS[name].partition(":")
    made: Callable[..., Any] = getattr(importlib.import_module(module), kind).from_official
    return made


class Evil:
    """Runs code where a pickle is trusted."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('a pickle ran code')",)


def torched(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"not a pickle")
    return file.getvalue()


def files() -> dict[str, bytes]:
    """Contents of a `.pt` file."""
    rng, weight = random.Random(0), torch.zeros(2, 2)
    whole = torched({"model": {"a": weight}})
    return {
        "empty": b"",
        "text": b"<!DOCTYPE html>",
        "noise": rng.randbytes(2000),
        "cut": whole[: len(whole) // 2],
        "tail": whole[len(whole) // 2 :],
        "zip": zipped(),
        "bare zip": b"PK\x05\x06" + bytes(18),
        "pickle of code": pickle.dumps(Evil()),
        "weights of code": torched({"model": Evil()}),
        "a pickle": pickle.dumps({"a": 1}),
        "a list": torched([weight]),
        "a tensor": torched(weight),
        "a number": torched(7),
        "none": torched(None),
        "no weights": torched({"model": {}}),
        "numbers": torched({"model": {"a": 1}}),
        "integer keys": torched({1: weight, 2: weight}),
        "other weights": whole,
        "nested": torched({"model": {"module": {"state_dict": {"a": weight}}}}),
        "nan": torched({"a": torch.full((2, 2), float("nan"))}),
        "control characters": torched({"a\x1b[31m\n": weight}),
        "many keys": torched({f"k{i}": torch.zeros(1) for i in range(3000)}),
    }


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("case", files())
def test_a_bad_file(attempt: Callable, tmp_path: Path, name: str, case: str) -> None:
    file = tmp_path / "checkpoint.pt"
    file.write_bytes(files()[case])
    attempt(lambda: loader(name)(file))


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize(
    "case", ["empty", "text", "cut", "huge header", "other weights", "folder", "nothing", "number"]
)
def test_bad_safetensors(attempt: Callable, tmp_path: Path, name: str, case: str) -> None:
    file: Any = tmp_path / "checkpoint.safetensors"
    save_file({"a": torch.zeros(2, 2)}, file)
    whole = file.read_bytes()
    contents = {"empty": b"", "text": b"hello", "cut": whole[:20], "huge header": (2**62).to_bytes(8, "little") + b"{}"}
    if case in contents:
        file.write_bytes(contents[case])
    elif case in ("folder", "nothing"):
        file.unlink()
        if case == "folder":
            file.mkdir()
    elif case == "number":
        file = 7
    attempt(lambda: loader(name)(file))
