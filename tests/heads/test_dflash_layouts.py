"""DFlash heads in every layout: logits of the forward written out, and what becomes of every key."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from mmspec.core.types import Draft
from mmspec_text.drafters.dflash import Context, dflash_features
from mmspec_text.drafters.heads.dflash.checkpoint import read_dflash
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.rows import Rows
from tests.support.dflash_forward import BlockWrittenOut
from tests.support.dflash_layouts import LAYOUTS, VOCAB, head_ids
from tests.text.conftest import llama

PUBLISHED = ("dflash", "dspark-without-heads", "dspark", "dspark-rnn")
"""Layouts whose logits `test_published.py` compares with those of their authors' classes."""


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return llama(num_hidden_layers=6)


def joined(folder: Path, model: LlamaForCausalLM) -> DFlashNetwork:
    network = read_dflash(str(folder)).network(VOCAB)
    network.join(model.model.embed_tokens, model.lm_head, model.device, model.dtype)
    return network


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in PUBLISHED])
def test_logits_are_those_of_the_forward_written_out(name: str, model: LlamaForCausalLM, tmp_path: Path) -> None:
    """A ragged batch of two."""
    stored = LAYOUTS[name]
    network = joined(stored.save(tmp_path), model)
    embedding, output = model.model.embed_tokens.weight.detach(), model.lm_head.weight.detach()
    reference = BlockWrittenOut(stored.weights(), stored.flags, embedding, output)
    g = torch.Generator().manual_seed(3)
    features = torch.randn(2, 6, network.fc.in_features, generator=g)
    count, root = torch.tensor([6, 2]), torch.randint(VOCAB, (2,), generator=g)
    path = torch.randint(VOCAB, (2, network.architecture.units - 1), generator=g)
    with torch.no_grad():
        logits = walked(network, features, count, root, path)
    ids = head_ids(stored)
    for row in range(2):
        known = features[row, : int(count[row])]
        expected = torch.stack(reference.draft_logits(list(known), int(root[row]), path[row].tolist()))
        assert torch.allclose(logits[row][:, ids].double(), expected, atol=1e-4 * float(expected.abs().max()))
    unmapped = torch.ones(VOCAB, dtype=torch.bool).index_fill(0, ids, False)
    assert logits[..., unmapped].isneginf().all()


def walked(network: DFlashNetwork, features: Tensor, count: Tensor, root: Tensor, path: Tensor) -> Tensor:
    """Logits behind the root and behind every unit of a chain, which grows unit by unit: `[batch, node, vocab]`."""
    context = Context(network, len(root), 20, root.device)
    context.read(Rows.at_left(features, count))
    block, found = context.block(root), []
    for nodes in range(path.shape[1] + 1):
        draft = Draft.chain(path[:, :nodes]).rooted(root, torch.full_like(root, 9))
        logits = block.grow(draft, nodes).logits
        assert logits is not None
        found.append(logits)
    return torch.cat(found, 1)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_key_is_taken_shared_or_ignored(name: str, tmp_path: Path) -> None:
    stored = LAYOUTS[name]
    checkpoint = read_dflash(str(stored.save(tmp_path)))
    assert set(checkpoint.taken) == set(stored.weights()) and set(checkpoint.ignored) == set(stored.extra)
    assert set(checkpoint.shared) == {"embed_tokens.weight", "lm_head.weight"} - set(stored.weights())
    assert checkpoint.layout.name == name.split("-")[0] and dflash_features(checkpoint, 6).boundaries == (2, 4)


@pytest.mark.parametrize("name", ["dspark-rnn", pytest.param("speculators-dspark", marks=pytest.mark.slow)])
def test_every_missing_key_is_named(name: str, model: LlamaForCausalLM, tmp_path: Path) -> None:
    """Leave out one key after the other: the error has its name; what the target lends may be missing."""
    stored = LAYOUTS[name]
    for number, key in enumerate(stored.shapes):
        if key in ("embed_tokens.weight", "lm_head.weight", "layers.0.self_attn.q_norm.weight"):
            continue
        folder = stored.save(tmp_path / str(number), **{key: None})
        with pytest.raises(ValueError, match=key.removesuffix(".weight")):
            joined(folder, model)
