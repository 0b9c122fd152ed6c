"""Heads in every layout: logits of the forward written out, and what becomes of every key."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from tests.support.cached_heads import teacher_forced
from tests.support.eagle_forward import WrittenOut
from tests.support.eagle_layouts import LAYOUTS, PRUNED, VOCAB, Stored
from tests.text.conftest import llama

PUBLISHED = ("eagle-1", "eagle-3")
"""Layouts whose logits `test_published.py` compares with those of their authors' classes."""


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return llama(num_hidden_layers=6)


def written_out(stored: Stored, model: LlamaForCausalLM, seed: int = 0) -> WrittenOut:
    return WrittenOut(stored.weights(seed), stored.flags, model.model.embed_tokens.weight, model.lm_head.weight)


def joined(folder: Path, model: LlamaForCausalLM) -> EagleNetwork:
    network = read_checkpoint(str(folder)).network(VOCAB)
    network.join(model.model.embed_tokens, model.lm_head, model.device, model.dtype)
    return network


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in PUBLISHED])
def test_logits_are_those_of_the_forward_written_out(name: str, model: LlamaForCausalLM, tmp_path: Path) -> None:
    stored = LAYOUTS[name]
    network, reference = joined(stored.save(tmp_path), model), written_out(stored, model)
    g = torch.Generator().manual_seed(3)
    features = torch.randn(2, 6, network.architecture.width, generator=g)
    units = torch.randint(VOCAB, (2, 6), generator=g)
    with torch.no_grad():
        logits = teacher_forced(network, features, units)
    assert logits.shape == (2, 6, VOCAB)
    ids = torch.arange(PRUNED) + stored.weights()["d2t"] if stored.pruned else torch.arange(VOCAB)
    for row in range(2):
        states = [reference.state(feature) for feature in features[row]]
        expected = torch.stack([reference.logits(u) for u in reference.fed_back(states, units[row].tolist())])
        assert torch.allclose(logits[row][:, ids].double(), expected, atol=1e-4 * float(expected.abs().max()))
    unmapped = torch.ones(VOCAB, dtype=torch.bool).index_fill(0, ids, False)
    assert logits[..., unmapped].isneginf().all()


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_key_is_taken_shared_or_ignored(name: str, tmp_path: Path) -> None:
    stored = LAYOUTS[name]
    checkpoint = read_checkpoint(str(stored.save(tmp_path)))
    assert set(checkpoint.taken) == set(stored.weights()) and checkpoint.ignored == stored.extra
    borrowed = {"embed_tokens.weight", "lm_head.weight"} - set(stored.weights())
    assert set(checkpoint.shared) == borrowed
    assert checkpoint.layout.name.startswith(name.split("-")[0]) or name.split("-")[0] not in (
        "speculators",
        "specforge",
    )


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_missing_key_is_named(name: str, model: LlamaForCausalLM, tmp_path: Path) -> None:
    """Leave out one key after the other: the error has its name; what the target lends may be missing."""
    stored = LAYOUTS[name]
    for number, key in enumerate(stored.shapes):
        if key in ("embed_tokens.weight", "lm_head.weight") or key.endswith((".bias", "q_norm.weight")):
            continue
        if not stored.flags.third and "norm" in key and "post_attention" not in key:
            continue  # in EAGLE-1, norms that a checkpoint lacks are not computed
        if not stored.flags.has_fc and key == "layers.0.hidden_norm.weight":
            continue
        folder = stored.save(tmp_path / str(number), **{key: None})
        with pytest.raises(ValueError, match=key.removesuffix(".weight")):
            joined(folder, model)
