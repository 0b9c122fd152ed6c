"""Heads in their authors' files, pickles of torch: weights alone are read, and no code is run."""

import argparse
import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import mmspec
from mmspec.hosts import loading
from mmspec_text.drafters.heads.dflash.checkpoint import read_dflash
from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint
from mmspec_text.drafters.ppd import read_prompts
from tests.support import dflash_layouts, eagle_layouts
from tests.support.path_heads import LAYOUTS as PATHS
from tests.text.conftest import llama

HEADS: dict[str, tuple[Any, Callable[[str], Any]]] = {
    "eagle": (eagle_layouts.LAYOUTS["eagle-3"], read_checkpoint),
    "dflash": (dflash_layouts.LAYOUTS["dflash"], read_dflash),
    **{name: (PATHS[name], PATHS[name].read) for name in ("medusa", "medusa-2", "hydra", "clover-2", "mlp-speculator")},
}
"""Layouts, and what reads them."""
WAYS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "bare": lambda state: state,
    "wrapped": lambda state: {"state_dict": state, "epoch": 3, "args": argparse.Namespace(lr=0.1, betas=[0.9, 0.95])},
    "model": lambda state: {"model": {f"module.{key}": value for key, value in state.items()}},
    "parameters": lambda state: {k: torch.nn.Parameter(value, value.is_floating_point()) for k, value in state.items()},
}


class Trap:
    """Runs code when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = str(place)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.place,)


def pickled(layout: Any, folder: Path, name: str, way: Callable[[dict[str, Tensor]], Any] = WAYS["bare"]) -> Path:
    """The layout with its weights in a pickle of that name."""
    layout.save(folder)
    (weights,) = folder.glob("*.safetensors")
    torch.save(way(load_file(weights)), folder / name)
    weights.unlink()
    return folder


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("head", HEADS)
def test_weights_are_those_of_the_safetensors_file(head: str, way: str, tmp_path: Path) -> None:
    layout, read = HEADS[head]
    safe = read(str(layout.save(tmp_path / "safe")))
    ours = read(str(pickled(layout, tmp_path / "pickled", "pytorch_model.bin", WAYS[way])))
    assert ours.architecture == safe.architecture and ours.weights.keys() == safe.weights.keys()
    assert all(torch.equal(ours.weights[key], value) for key, value in safe.weights.items())
    assert not any(value.requires_grad for value in ours.weights.values())
    assert len(ours.ignored) == len(safe.ignored)


@pytest.mark.parametrize(
    ("head", "file"),
    [("medusa", "medusa_lm_head.pt"), ("hydra", "hydra_lm_head.pt"), ("eagle", "model.pth"), ("dflash", "model.bin")],
)
def test_file_names_of_authors(head: str, file: str, tmp_path: Path) -> None:
    layout, read = HEADS[head]
    assert read(str(pickled(layout, tmp_path, file))).weights


def test_files_before_torch_1_6_and_shards(tmp_path: Path) -> None:
    layout, read = HEADS["eagle"]
    whole = read(str(layout.save(tmp_path / "safe"))).weights
    folder = pickled(layout, tmp_path / "old", "pytorch_model.bin")
    state = torch.load(folder / "pytorch_model.bin", weights_only=True)
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert read(str(folder)).weights.keys() == whole.keys()
    (folder / "pytorch_model.bin").unlink()
    shards = {key: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, key in enumerate(state)}
    for name in set(shards.values()):
        torch.save({key: value for key, value in state.items() if shards[key] == name}, folder / name)
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    assert all(torch.equal(value, whole[key]) for key, value in read(str(folder)).weights.items())
    index.write_text(json.dumps({"weight_map": {**shards, "x": "../x.bin"}}))
    with pytest.raises(ValueError, match=r"names '../x.bin', which is no bin file of its folder"):
        read(str(folder))


State = dict[str, Tensor]
BAD: dict[str, tuple[Callable[[State, Path], Any], str]] = {
    "code beside": (lambda state, trap: {"model": state, "args": Trap(trap)}, "which can run code"),
    "code as a weight": (lambda state, trap: {**state, "x": Trap(trap)}, "which can run code"),
    "code in a namespace": (lambda state, trap: {"a": argparse.Namespace(x=Trap(trap)), **state}, "which can run code"),
    "a plain pickle of code": (lambda state, trap: pickle.dumps(Trap(trap), 2), "which can run code|damaged"),
    "cut off": (lambda state, trap: saved(state)[:-90], "damaged, cut off"),
    "half": (lambda state, trap: saved(state)[: len(saved(state)) // 2], "damaged, cut off"),
    "empty": (lambda state, trap: b"", "damaged, cut off"),
    "a list": (lambda state, trap: [*state.values()], "it holds a list, not a mapping"),
    "a number": (lambda state, trap: {**state, "lr": 0.1}, "'lr' is a float"),
    "a wrapper of someone's own": (lambda state, trap: {"weights": state}, "'weights' is a (dict|OrderedDict)"),
    "numbers for names": (lambda state, trap: dict(enumerate(state.values())), "0 is no name"),
    "nothing": (lambda state, trap: {"model": {}}, "no weights"),
    "twice": (lambda state, trap: {**state, "module.norm.weight": state["norm.weight"]}, "norm.weight are there twice"),
    "sparse": (lambda state, trap: {**state, "norm.weight": torch.eye(64).to_sparse()}, "dense"),
    "complex": (lambda state, trap: {**state, "norm.weight": torch.ones(64) + 0j}, "dense"),
    "many": (lambda state, trap: {**state, "norm.weight": torch.zeros(1).expand(64)}, "of which few are stored"),
}


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_and_nothing_is_run(name: str, tmp_path: Path) -> None:
    layout, read = HEADS["eagle"]
    folder = pickled(layout, tmp_path / "head", "pytorch_model.bin")
    file, trap = folder / "pytorch_model.bin", tmp_path / "sprung"
    change, said = BAD[name]
    changed = change(torch.load(file, weights_only=True), trap)
    file.write_bytes(changed if isinstance(changed, bytes) else saved(changed))
    with pytest.raises(ValueError, match=f"pytorch_model.bin in .*head'.*({said})") as error:
        read(str(folder))
    assert not trap.exists() and "weights_only" not in str(error.value)


def test_auto_knows_a_pickled_head(tmp_path: Path) -> None:
    """By its keys; a whole model in a pickle is refused as before, and so is what is beside no weights at all."""
    model, layout = llama(num_hidden_layers=6), HEADS["eagle"][0]
    with mmspec.enable(model, drafter=str(pickled(layout, tmp_path / "head", "pytorch_model.bin"))) as enabled:
        assert enabled.method == "eagle"
    model.save_pretrained(tmp_path / "whole")
    (weights,) = (tmp_path / "whole").glob("*.safetensors")
    torch.save(load_file(weights), tmp_path / "whole" / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(ValueError, match=r"has its weights as a pickle .pytorch_model.bin., which can run code"):
        mmspec.enable(model, drafter=str(tmp_path / "whole"))
    with pytest.raises(ValueError, match=r"has no weights in .*; they are in one of model.safetensors, .*model.pth"):
        read_checkpoint(str(pickled(layout, tmp_path / "other", "my_head.pt")))


@pytest.mark.parametrize(("head", "file"), [("eagle", "pytorch_model.bin"), ("medusa", "medusa_lm_head.pt")])
def test_heads_on_the_hub(head: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, read = HEADS[head]
    folder = pickled(layout, tmp_path, file)

    def cached(name: str, file: str, **how: Any) -> str | None:
        return str(folder / file) if (folder / file).is_file() else None

    monkeypatch.setattr(loading, "cached_file", cached)
    assert read("someone/head").weights
    (folder / file).rename(folder / "other.pt")
    with pytest.raises(ValueError, match=rf"'someone/head' has no safetensors files and none of .*{file}.*other names"):
        read("someone/head")


def test_adapters(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"num_special_tokens": 3}))
    torch.save({"prompt_embeddings": torch.ones(3, 16)}, tmp_path / "adapter_model.bin")
    assert torch.equal(read_prompts(str(tmp_path)).embeddings, torch.ones(3, 16))
    torch.save({"prompt_embeddings": torch.ones(3, 16), "odd": torch.ones(2)}, tmp_path / "adapter_model.bin")
    with pytest.raises(ValueError, match=r"not all of it is read: 1 keys that nothing reads \(odd\)"):
        read_prompts(str(tmp_path))
