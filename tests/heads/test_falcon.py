"""Heads of Falcon: the forward written out, what they draft behind little text, bad input."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match, Rule
from mmspec.hosts.target import TransformersTarget
from mmspec.testing import tiny_models
from mmspec_text.drafters import falcon as falcon_cache
from mmspec_text.drafters.falcon import BlockCache, Falcon, FalconOptions
from mmspec_text.drafters.heads.eagle.checkpoint import Checkpoint, read_checkpoint
from mmspec_text.drafters.heads.rows import Rows
from tests.heads.conftest import FIRST, features_of, written_out
from tests.support.eagle_forward import WrittenOut
from tests.support.eagle_layouts import TARGET, VOCAB, Stored, flags, layer, sizes
from tests.support.examples.heads import random_checkpoint
from tests.support.falcon_forward import FalconForward
from tests.text.conftest import llama

HEADS: dict[str, Checkpoint] = {
    "two": random_checkpoint(replace(FIRST, block=2, biases=frozenset({"lstm"}))),
    "three, deep": random_checkpoint(replace(FIRST, block=3, layers=2), seed=2),
}
LSTM = {
    **{f"lstm.weight_{part}_l{number}": (4 * TARGET, TARGET) for part in ("ih", "hh") for number in (0, 1)},
    **{f"lstm.bias_{part}_l{number}": (4 * TARGET,) for part in ("ih", "hh") for number in (0, 1)},
    "lstm.weight_ih_l0": (4 * TARGET, 2 * TARGET),
}
STORED = Stored(
    {**sizes(), "k_mask": 2},
    lambda key: key,
    flags(third=False),
    {**LSTM, **layer(0, TARGET, TARGET), "embed_tokens.weight": (VOCAB, TARGET)},
    pruned=False,
)
"""A head as the released code writes it, for the Llama of the text tests."""


def decoder(name: str, rule: Rule | None = None, k: int = 4, **options: Any) -> Decoder:
    drafter = Falcon(FalconOptions(model=HEADS[name], **options))
    return Decoder(TransformersTarget(tiny_models.llama()), drafter, rule or Match(), k=k)


def forward(of: WrittenOut, block: int) -> FalconForward:
    made = FalconForward(of.w, of.f, of.embedding, of.output)
    made.block = block
    return made


def expected(name: str) -> Callable[[Tensor, list[int]], Tensor]:
    @cache
    def scored(known: tuple[int, ...], path: tuple[int, ...]) -> Tensor:
        stored, ids = HEADS[name], torch.tensor(known)
        reference = forward(written_out(stored), stored.architecture.block)
        return torch.stack(reference.draft_logits(features_of(stored, ids[:-1]), list(known[1:]), list(path)))

    return lambda known, path: scored(tuple(known.tolist()), tuple(path)).log_softmax(-1)


def test_logits_are_those_of_the_forward_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored head, a ragged batch, in one piece and in pieces of three rows."""
    model = llama(num_hidden_layers=2)
    stored = read_checkpoint(str(STORED.save(tmp_path)), kind="falcon")
    assert stored.ignored == ("lstm.weight_hh_l0", "lstm.weight_hh_l1"), "a cell that begins with nothing has no past"
    network = stored.network(VOCAB)
    network.join(model.model.embed_tokens, model.lm_head, model.device, model.dtype)
    output = model.lm_head.weight.detach()
    reference = forward(WrittenOut(STORED.weights(), STORED.flags, output, output), 2)
    g = torch.Generator().manual_seed(3)
    features, units = torch.randn(2, 9, TARGET, generator=g), torch.randint(VOCAB, (2, 9), generator=g)
    count = torch.tensor([9, 3])
    for piece in (falcon_cache.CHUNK, 3):
        monkeypatch.setattr(falcon_cache, "CHUNK", piece)
        head = BlockCache(network, 2, 2, 20, units.device)
        head.read(Rows(features, count), units)
        assert head.blocks is not None and not bool(head.short.any())
        logits = network.logits(head.blocks.states[:, 0])
        for row in range(2):
            own = slice(9 - int(count[row]), None)
            wanted = torch.stack(reference.draft_logits(features[row, own], units[row, own].tolist(), [0]))
            assert torch.allclose(logits[row].double(), wanted, atol=1e-4 * float(wanted.abs().max()))


def test_behind_less_than_a_block_nothing_is_drafted() -> None:
    """A block of three takes three rows, which four units give; the text is plain's."""
    prompt = torch.tensor([[3, 5], [2, 6]])
    plain = Decoder(TransformersTarget(tiny_models.llama()), None, Match(), k=0).generate(prompt, 12, seed=5)
    ours = decoder("three, deep", form="chain")
    state = ours.start(prompt, 12, seed=5)
    valid = []
    for _ in range(3):
        pending = ours.speculate(state)
        valid.append(bool(pending.draft.valid[:, 1:].any()))
        ours.settle(state, pending)
        state.sync()
    assert valid == [False, True, True]
    again = ours.generate(prompt, 12, seed=5)
    assert all(torch.equal(a, b) for a, b in zip(again.units, plain.units, strict=True))
