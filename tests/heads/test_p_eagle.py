"""Heads of P-EAGLE: every layout, pieces of a long text, bad input."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match, Rejection, Rule
from mmspec.hosts.target import TransformersTarget
from mmspec.testing import tiny_models
from mmspec_text.drafters.heads import cache as heads_cache
from mmspec_text.drafters.heads.cache import HeadCache, Unknown
from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint
from mmspec_text.drafters.heads.rows import Rows
from mmspec_text.drafters.p_eagle import PEagle, PEagleOptions
from tests.heads.conftest import KEPT, MAPS, SAMPLED, features_of, written_out
from tests.support.cycle import Cycle
from tests.support.draft_rounds import Expected, assert_distributions, played
from tests.support.eagle_forward import WrittenOut
from tests.support.examples.heads import THIRD, random_checkpoint
from tests.support.p_eagle_layouts import LAYOUTS, MASK, PRUNED, VOCAB
from tests.text.conftest import llama

DEEP = replace(THIRD, layers=2, parallel=True)
HEADS = {
    "whole": replace(random_checkpoint(replace(DEEP, own_output=False)), mask_token=3),
    "pruned": replace(random_checkpoint(replace(DEEP, draft_vocab=5, window=4), maps=MAPS), mask_token=0),
}


def decoder(name: str, rule: Rule | None = None, k: int = 4, **options: Any) -> Decoder:
    drafter = PEagle(PEagleOptions(model=HEADS[name], probe=False, **options))
    return Decoder(TransformersTarget(tiny_models.llama()), drafter, rule or Match(), k=k)


@cache
def block(name: str, known: tuple[int, ...], depth: int = 4) -> Tensor:
    """Log probabilities of the units behind known ones: `[depth, vocab]`."""
    stored, ids = HEADS[name], torch.tensor(known)
    reference = written_out(stored)
    reference.f = replace(reference.f, window=stored.architecture.window)
    features = features_of(stored, ids[:-1])
    logits = torch.stack(reference.parallel_logits(features, list(known[1:]), stored.mask_token or 0, depth))
    if name == "pruned":
        logits = torch.full((depth, 7), -torch.inf, dtype=logits.dtype).index_copy(1, KEPT, logits)
    return logits.log_softmax(-1)


def expected(name: str) -> Expected:
    return lambda known, path: block(name, tuple(known.tolist()))[: len(path) + 1]


@pytest.mark.parametrize("name", LAYOUTS)
def test_logits_are_those_of_the_forward_written_out(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    """A ragged batch, in one piece and in pieces of three rows."""
    stored, model = LAYOUTS[name], llama(num_hidden_layers=6)
    network = read_checkpoint(str(stored.save(tmp_path)), kind="p-eagle").network(VOCAB)
    network.join(model.model.embed_tokens, model.lm_head, model.device, model.dtype)
    embedding, output = model.model.embed_tokens.weight.detach(), model.lm_head.weight.detach()
    reference = WrittenOut(stored.weights(), stored.flags, embedding, output)
    g = torch.Generator().manual_seed(3)
    features = torch.randn(2, 7, network.architecture.width, generator=g)
    units, count = torch.randint(VOCAB, (2, 7), generator=g), torch.tensor([7, 2])
    ids = torch.arange(PRUNED) + stored.weights()["d2t"] if stored.pruned else torch.arange(VOCAB)
    for piece in (heads_cache.CHUNK, 3):
        monkeypatch.setattr(heads_cache, "CHUNK", piece)
        head = HeadCache(network, 2, 20, units.device)
        head.read(Rows(features, count), units, Unknown(network.unknown(), MASK, 3))
        logits = network.logits(head.states)
        for row in range(2):
            own = slice(7 - int(count[row]), None)
            scored = reference.parallel_logits(features[row, own], units[row, own].tolist(), MASK, 4)
            expected = torch.stack(scored)
            assert torch.allclose(logits[row][:, ids].double(), expected, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_key_is_taken_shared_or_ignored(name: str, tmp_path: Path) -> None:
    stored = LAYOUTS[name]
    checkpoint = read_checkpoint(str(stored.save(tmp_path)), kind="p-eagle")
    assert set(checkpoint.taken) == set(stored.weights()) and checkpoint.ignored == stored.extra
    assert checkpoint.layout.name == name.split("-")[0] and checkpoint.mask_token == MASK


def test_rounds_without_a_draft_are_caught_up_in_pieces(rows: dict[str, Tensor], monkeypatch: Any) -> None:
    """In rounds without a draft, where there are many of them."""
    for place in ("mmspec_text.drafters.heads.memory", "mmspec_text.drafters.heads.cache"):
        monkeypatch.setattr(f"{place}.CHUNK", 2)
    ours = decoder("whole", Rejection(), form="chain")
    ours.policy = Cycle(2, 0, 0, 4, 0, 3)
    recorded, _ = played(ours, rows, SAMPLED, rounds=6)
    assert [draft.units.shape[1] for _, _, draft in recorded] == [2, 4, 3]
    assert_distributions(recorded, expected("whole"))
