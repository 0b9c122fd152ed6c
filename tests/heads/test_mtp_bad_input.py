"""Checkpoints without multi-token layers, with others, or with a part of them; what is read of them, and how often."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts.loading import load_model
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_ssm.target import declared
from mmspec_text.drafters import mtp
from mmspec_text.drafters.heads.mtp.checkpoint import read_checkpoint
from mmspec_text.drafters.heads.mtp.network import MtpNetwork
from mmspec_text.drafters.mtp import Mtp, MtpOptions
from tests.heads.mtp_heads import checkpoint
from tests.support.mtp_layouts import LAYOUTS
from tests.support.zoo import build

MIMO = LAYOUTS["mimo"]
BLOCK = "model.mtp_layers.0"
PROJECTION = "model.mtp_layers.0.input_proj.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MIMO.save(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return MIMO.loaded(folder)


def refused(model: Any, match: str, folder: Path | None = None) -> None:
    with pytest.raises(ValueError, match=match):
        Decoder(TransformersTarget(model), Mtp(MtpOptions(model=None if folder is None else str(folder))))


def without(folder: Path) -> dict[str, None]:
    return {key: None for key in load_file(folder / "model.safetensors") if ".mtp" in key}


def test_checkpoints_without_these_layers(model: Any, folder: Path, tmp_path: Path) -> None:
    none = without(folder)
    refused(model, "no multi-token layers behind the target's 4.*leave them out", MIMO.save(tmp_path / "a", **none))
    odd = {"model.nextn.0.fc.weight": torch.zeros(2)}
    refused(model, r"unknown layout \(model.nextn.0.fc.weight\)", MIMO.save(tmp_path / "b", **none, **odd))
    other = {"model.layers.4.shared_head.output.weight": torch.zeros(2)}
    refused(model, "layers of Step-3.5", MIMO.save(tmp_path / "c", **none, **other))
    refused(model, "mimo is the nearest", MIMO.save(tmp_path / "d", **{PROJECTION: None}))
    refused(model, "1 keys missing .*0.mlp.up_proj", MIMO.save(tmp_path / "f", **{f"{BLOCK}.mlp.up_proj.weight": None}))
    two = {"num_nextn_predict_layers": 2}
    refused(
        model,
        "says 2 multi-token layers .*, and there is no model.mtp_layers.1",
        MIMO.save(tmp_path / "e", two),
    )


def test_chains_that_are_not_read(tmp_path: Path) -> None:
    """A recurrent layer would need a state of its own, and a second attention a second cache."""
    stored = LAYOUTS["nemotron-h"]
    for kinds in (["linear_attention", "moe"], ["full_attention", "full_attention"]):
        folder = stored.save(tmp_path / kinds[0], {"mtp_layers_block_type": kinds})
        with pytest.raises(ValueError, match=f"of the kinds {', '.join(kinds)} are not read"):
            model_info = ModelInfo.of(stored.loaded(folder), declared())
            MtpNetwork(read_checkpoint(str(folder), model_info), model_info)


def test_layers_of_another_target(model: Any, tmp_path: Path) -> None:
    wide = {PROJECTION: torch.zeros(32, 64)}
    refused(model, r"input_proj|projection.weight: \[32, 64\], not \[64, 128\]", MIMO.save(tmp_path / "a", **wide))
    narrow = {f"{BLOCK}.mlp.up_proj.weight": torch.zeros(8, 64)}
    refused(model, r"up_proj.weight: \[8, 64\], not \[96, 64\]", MIMO.save(tmp_path / "b", **narrow))
    odd = {f"{BLOCK}.mlp.router.weight": torch.zeros(8, 64)}
    refused(model, "1 keys without a place .*router", MIMO.save(tmp_path / "c", **odd))


def test_targets_without_a_checkpoint() -> None:
    refused(llama(), "not loaded from a checkpoint")
    drafter = Mtp(MtpOptions(model=checkpoint("one"), form="chain"))
    with pytest.raises(ValueError, match="nothing offers hidden"):
        Decoder(MarkovTarget(torch.rand(7, 7, 7)), drafter)
    with pytest.raises(TypeError, match="folder or a hub name, not int"):
        Mtp(MtpOptions(model=3))


def test_quantised_layers(model: Any, folder: Path, tmp_path: Path) -> None:
    packed = {PROJECTION: torch.zeros(64, 128, dtype=torch.int8)}
    refused(model, "quantised .int8. in a form that is not read", MIMO.save(tmp_path / "a", **packed))
    raw = {PROJECTION: torch.zeros(64, 128).to(torch.float8_e4m3fn)}
    refused(model, "quantised .float8_e4m3fn.", MIMO.save(tmp_path / "b", **raw))
    scales = torch.tensor([[0.5, 2.0, 1.0]])
    weight = torch.randn(64, 128).to(torch.float8_e4m3fn)
    blocks = {PROJECTION: weight, f"{PROJECTION}_scale_inv": scales}
    sized = {"quantization_config": {"weight_block_size": [64, 48]}}
    read = read_checkpoint(str(MIMO.save(tmp_path / "c", sized, **blocks)), TransformersTarget(model).model_info)
    wide = torch.cat([torch.full((48,), 0.5), torch.full((48,), 2.0), torch.ones(32)])
    assert torch.equal(read.own["layers.0.projection.weight"], weight.float() * wide)
    refused(model, r"has scales of \[1, 3\], and its blocks have \[128, 128\]", MIMO.save(tmp_path / "d", **blocks))


def test_only_the_files_that_hold_the_layers_are_opened(model: Any, folder: Path, tmp_path: Path) -> None:
    """By the index; the other files may not be there."""
    weights = load_file(folder / "model.safetensors")
    parts = {"own.safetensors": [key for key in weights if ".mtp" in key]}
    index = {key: "absent.safetensors" for key in weights} | dict.fromkeys(parts["own.safetensors"], "own.safetensors")
    save_file({key: weights[key] for key in parts["own.safetensors"]}, tmp_path / "own.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    read = read_checkpoint(str(tmp_path), TransformersTarget(model).model_info)
    assert set(read.taken) == set(parts["own.safetensors"])
    index[PROJECTION] = "absent.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    refused(model, "absent.safetensors' is damaged, truncated or missing", tmp_path)


def test_a_target_from_the_hub_gets_the_layers_of_its_commit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []

    def cached(place: str, file: str, revision: str | None = None, **how: Any) -> str | None:
        asked.append((file, revision))
        return str(folder / file) if (folder / file).is_file() else None

    monkeypatch.setattr("mmspec.hosts.loading.cached_file", cached)
    model = MIMO.loaded(folder)
    model.config._name_or_path, model.config._commit_hash = "someone/model", "abc"
    Decoder(TransformersTarget(model), Mtp(MtpOptions(form="chain")))
    assert ("model.safetensors", "abc") in asked and asked.count(("config.json", "abc")) == 1


def test_layers_are_loaded_once_and_tried(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by `custom_generate`, which puts a decoder together for every call."""
    model, reads, said = MIMO.loaded(folder), [], []
    trials = []
    read = mtp.read_checkpoint
    monkeypatch.setattr(mtp, "read_checkpoint", lambda *args: reads.append(args) or read(*args))
    monkeypatch.setattr("mmspec_text.drafters.mtp.warn", said.append)
    attempt = mtp.try_head
    monkeypatch.setattr(mtp, "try_head", lambda *args: trials.append(args) or attempt(*args))
    prompt = torch.randint(3, 131, (1, 40), generator=torch.Generator().manual_seed(2))
    plain = model.generate(prompt, max_new_tokens=6, do_sample=False)
    for _ in range(2):
        ours = mmspec.custom_generate("mtp", form="chain", k=2)
        assert torch.equal(model.generate(prompt, max_new_tokens=6, do_sample=False, custom_generate=ours), plain)
    assert len(reads) == 1
    drafter = Mtp(MtpOptions(form="chain"))
    decoder = Decoder(TransformersTarget(model), drafter, k=2)
    for _ in range(2):
        decoder.generate(prompt, 4, warp=Warp.sampling(temperature=0))
    assert len(reads) == 1 and drafter.loaded is not None and drafter.loaded.trial is not None
    assert drafter.loaded.trial.units == 38 and "layout mimo" in str(drafter.loaded)
    assert len(trials) == 1 and len(said) == 1 and "may be of another checkpoint" in said[0]


def test_models_with_such_layers_are_loaded_by_name(folder: Path) -> None:
    """Keys for which the target has no place are no reason to refuse it, if they are these; others are."""
    model = load_model(str(folder))
    with mmspec.enable(model, "mtp", form="chain", k=2, probe=False) as enabled:
        model.generate(torch.tensor([[1, 4, 2, 6, 3]]), max_new_tokens=8, do_sample=False)
    assert enabled.report is not None and enabled.report.drafted > 0


def test_layers_of_a_folder_that_is_named(folder: Path) -> None:
    """The target has no checkpoint, or one that was saved without the layers."""
    model = build("qwen2")
    with mmspec.enable(model, "mtp", drafter=str(folder), form="chain", k=2, probe=False) as enabled:
        model.generate(torch.tensor([[1, 4, 2, 6, 3]]), max_new_tokens=8, do_sample=False)
    assert enabled.report is not None and enabled.report.drafted > 0


def test_a_model_that_was_cast(folder: Path) -> None:
    model = MIMO.loaded(folder)
    drafter = Mtp(MtpOptions(form="chain", probe=False))
    decoder, prompt = Decoder(TransformersTarget(model), drafter, k=2), torch.tensor([[1, 4, 2, 6, 3]])
    decoder.generate(prompt, 4)
    model.to(torch.bfloat16)
    Decoder(TransformersTarget(model), drafter, k=2).generate(prompt, 4)
    assert drafter._layers is not None
    assert {weight.dtype for weight in drafter._layers.network.parameters()} == {torch.bfloat16}
