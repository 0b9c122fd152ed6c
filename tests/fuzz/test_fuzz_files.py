"""Damaged folders of models and pipelines: weights, tokenizers, indices."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import mmspec
from mmspec.shipped import asset

WEIGHTS = "model.safetensors"


def copied(name: str, place: Path, without: str = "") -> Path:
    """A shipped model; files are links, but for the one that is written anew."""
    target = place / name
    shutil.copytree(asset(name), target, copy_function=lambda a, b: Path(b).symlink_to(a))
    if without:
        (target / without).unlink()
    return target


def load(folder: Path) -> Any:
    return mmspec.Pipeline.from_pretrained(str(folder), method="plain")


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def grown(data: bytes, rng: random.Random) -> bytes:
    return data + rng.randbytes(rng.randrange(1, 64))


def header_bit(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(8)
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def noise(data: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(0, 4096))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("damage", [cut, grown, header_bit, noise], ids=lambda f: f.__name__)
def test_damaged_weights(attempt: Callable, tmp_path: Path, damage: Callable, seed: int) -> None:
    folder = copied("text-1m", tmp_path, WEIGHTS)
    whole = (asset("text-1m") / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(damage(whole, random.Random(seed)))
    attempt(lambda: load(folder))


def lacking(state: dict[str, Any], key: str) -> None:
    del state[key]


def widened(state: dict[str, Any], key: str) -> None:
    state[key] = torch.cat([state[key], state[key]])


def flattened(state: dict[str, Any], key: str) -> None:
    state[key] = state[key].flatten()[:-1].clone()


def integers(state: dict[str, Any], key: str) -> None:
    state[key] = state[key].to(torch.int8)


def renamed(state: dict[str, Any], key: str) -> None:
    state[key + "_"] = state.pop(key)


def more(state: dict[str, Any], key: str) -> None:
    state["strange." + key] = torch.zeros(2)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("damage", [lacking, widened, flattened, integers, renamed, more], ids=lambda f: f.__name__)
def test_weights_of_something_else(attempt: Callable, tmp_path: Path, damage: Callable, seed: int) -> None:
    folder = copied("text-1m", tmp_path, WEIGHTS)
    state = load_file(asset("text-1m") / WEIGHTS)
    damage(state, random.Random(seed).choice(sorted(state)))
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
    attempt(lambda: load(folder))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("damage", [cut, noise], ids=lambda f: f.__name__)
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer(attempt: Callable, tmp_path: Path, file: str, damage: Callable, seed: int) -> None:
    folder = copied("text-1m", tmp_path, file)
    (folder / file).write_bytes(damage((asset("text-1m") / file).read_bytes(), random.Random(seed)))
    attempt(lambda: load(folder))


PIPELINES = ("emoji", "emoji-continuous", "four-courts", "four-courts-tokens")
INDEX = "model_index.json"


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("gone", ["half of the parts", "the weights", "the weights' second half", "the index"])
def test_half_a_pipeline(attempt: Callable, tmp_path: Path, name: str, gone: str) -> None:
    folder = copied(name, tmp_path)
    weights = next((folder / "transformer").glob("*.safetensors"))
    if gone == "half of the parts":
        shutil.rmtree(folder / "transformer")
    elif gone == "the index":
        (folder / INDEX).unlink()
    else:
        data = weights.read_bytes()
        weights.unlink()
        if gone != "the weights":
            weights.write_bytes(data[: len(data) // 2])
    attempt(lambda: load(folder))


def indices(name: str) -> dict[str, Any]:
    """What a hostile `model_index.json` may say."""
    right = json.loads((asset(name) / INDEX).read_text())
    parts = [key for key, value in right.items() if isinstance(value, list) and not key.startswith("_")]
    said: dict[str, Any] = {
        "no class": {k: v for k, v in right.items() if k != "_class_name"},
        "another class": {**right, "_class_name": "StableDiffusionPipeline"},
        "a path as class": {**right, "_class_name": "../evil"},
        "a list as class": {**right, "_class_name": ["evil", "Evil"]},
        "a number as class": {**right, "_class_name": 7},
        "a list": [],
        "null": None,
    }
    for part in parts:
        said |= {
            f"{part} of os": {**right, part: ["os", "system"]},
            f"{part} of a file": {**right, part: ["evil", "Evil"]},
            f"{part} of a path": {**right, part: ["../evil", "Evil"]},
            f"{part} of a dotted module": {**right, part: ["evil.inner", "Evil"]},
            f"{part} of builtins": {**right, part: ["builtins", "exec"]},
            f"{part} as a name": {**right, part: "torch"},
            f"{part} as three": {**right, part: ["torch", "nn", "Linear"]},
            f"{part} of numbers": {**right, part: [7, 7]},
            f"{part} as a dictionary": {**right, part: {"torch": "nn"}},
        }
    return said


CASES = [(name, case) for name in PIPELINES for case in indices(name)]


@pytest.mark.parametrize("name,case", CASES)
def test_a_hostile_index(
    attempt: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, case: str
) -> None:
    folder, ran = copied(name, tmp_path, INDEX), tmp_path / "ran"
    evil = f"open({str(ran)!r}, 'w').close()\nclass Evil:\n    pass\n"
    for place in (tmp_path / "evil.py", folder / "evil.py", folder / "pipeline.py"):
        place.write_text(evil)
    for part in ("transformer", "vq", "vae", "tokenizer"):
        if (folder / part).is_dir():
            (folder / part / "evil.py").write_text(evil)
    monkeypatch.syspath_prepend(tmp_path)
    (folder / INDEX).write_text(json.dumps(indices(name)[case]))
    attempt(lambda: load(folder))
    assert not ran.exists(), "a file's word ran code"
