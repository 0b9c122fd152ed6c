"""Multi-token layers in every layout: logits of the forward written out, and what becomes of every key."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec.hosts.model_info import ModelInfo
from mmspec_ssm.target import declared
from mmspec_text.drafters.heads.mtp.checkpoint import read_checkpoint
from mmspec_text.drafters.heads.mtp.network import MtpNetwork
from tests.support.cached_heads import teacher_forced
from tests.support.mtp_layouts import LAYOUTS, Stored

NAMES = [pytest.param(name, marks=[] if name == "mimo" else [pytest.mark.slow]) for name in LAYOUTS]
"""A mixture of experts in every layout takes seconds."""


def model_info_of(model: Any) -> ModelInfo:
    return ModelInfo.of(model, declared())


def joined(folder: Path, model: Any) -> MtpNetwork:
    model_info = model_info_of(model)
    network = MtpNetwork(read_checkpoint(str(folder), model_info), model_info)
    network.join_model(model_info)
    return network


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_forward_written_out(name: str, tmp_path: Path) -> None:
    """Rows of known units, as one pass of the network sees them: of the first depth."""
    stored = LAYOUTS[name]
    folder = stored.save(tmp_path)
    model = stored.loaded(folder)
    network, reference = joined(folder, model), stored.written_out(model)
    g = torch.Generator().manual_seed(3)
    features = torch.randn(2, 16, model.config.hidden_size, generator=g)
    units = torch.randint(network.vocab, (2, 16), generator=g)
    with torch.no_grad():
        logits = teacher_forced(network, features, units)
    for row in range(2):
        for length in (1, 2, 16):  # beyond the window of those that have one
            expected = reference.draft_logits(features[row, :length], units[row, :length].tolist(), [])[0]
            assert torch.allclose(logits[row, length - 1], expected, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_taken_or_ignored(name: str, tmp_path: Path) -> None:
    stored = LAYOUTS[name]
    folder = stored.save(tmp_path)
    checkpoint = read_checkpoint(str(folder), model_info_of(stored.loaded(folder)))
    copies = {stored.place(key, depth) for key in stored.extra for depth in range(stored.depths)}
    assert checkpoint.family.name == stored.family and checkpoint.depths == stored.depths
    assert set(checkpoint.taken) == set(stored.keys()) - copies and set(checkpoint.ignored) == copies


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_missing_key_is_named(name: str, tmp_path: Path) -> None:
    """Leave out one key after the other; of experts the message may name the tensor that they are packed into."""
    stored: Stored = LAYOUTS[name]
    model = stored.loaded(stored.save(tmp_path / "whole"))
    for number, key in enumerate(stored.keys()):
        if key.endswith(".bias") or key in {
            stored.place(copy, i) for copy in stored.extra for i in range(stored.depths)
        }:
            continue
        if ".experts." in key and not (".experts.0." in key or ".experts.3." in key):
            continue
        said = key.split(".experts.")[0].removesuffix(".weight")
        for old, new in stored.renamed.items():
            said = said.replace(new, f"({new}|{old})")
        for theirs, ours in stored.other.items():
            said = said.replace(theirs, ours)
        with pytest.raises(ValueError, match=said.removesuffix("e_score_correction_bias")):
            joined(stored.save(tmp_path / str(number), **{key: None}), model)
