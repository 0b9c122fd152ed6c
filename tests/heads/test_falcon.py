"""Heads of Falcon: the forward written out, what they draft behind little text, the published tree, their training."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.static_tree import counted_tree
from mmspec.core.rules import Match, Rule
from mmspec.hosts.target import TransformersTarget
from mmspec.testing import tiny_models
from mmspec.training.losses import DraftLoss, Top, draft_loss, feature_loss
from mmspec_text.drafters import falcon as falcon_cache
from mmspec_text.drafters.falcon import TREE, BlockCache, Falcon, FalconOptions
from mmspec_text.drafters.heads.eagle.checkpoint import Checkpoint, read_checkpoint
from mmspec_text.drafters.heads.rows import Rows
from mmspec_text.drafters.heads.unroll import along, in_blocks
from mmspec_text.training.heads import glanced, glanced_share, head_loss
from mmspec_text.training.teacher import Said
from mmspec_text.training.texts import Batch
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


def test_the_published_tree(tmp_path: Path) -> None:
    """Eight levels of these sizes; paths of the released list, and what is not on it; a text as without drafts."""
    parents, ranks = counted_tree(TREE, 8, 20)
    paths = list[tuple[int, ...]]()
    for parent, rank in zip(parents, ranks, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), rank))
    assert [[len(path) for path in paths].count(level) for level in range(1, 10)] == [20, 15, 19, 23, 21, 23, 21, 23, 0]
    last = {(0,) * 7 + (7,), (0, 0, 0, 0, 0, 2, 0, 0), (0, 0, 0, 0, 1, 0, 0, 0), (2,) + (0,) * 7}
    assert last | {(19,), (3, 0), (0, 2, 1), (0, 1, 1, 0), (0, 0, 0, 1, 1, 0)} <= {*paths}
    assert {(20,), (4, 0), (3,) + (0,) * 7, (0, 0, 0, 0, 1, 1, 0)}.isdisjoint(paths)
    target = TransformersTarget(llama(num_hidden_layers=2))
    drafter = Falcon(FalconOptions(model=str(STORED.save(tmp_path)), form="published"))
    ours, plain = Decoder(target, drafter, Match(), k=8), Decoder(target, None, Match(), k=0)
    assert drafter.own_length == 8 and drafter.width(8) == len(paths)
    prompt = torch.tensor([[3, 5, 2, 7]])
    assert ours.generate(prompt, 12, seed=5).units[0].tolist() == plain.generate(prompt, 12, seed=5).units[0].tolist()


IDS = tiny_models.llama().config.vocab_size


def learning(name: str) -> tuple[Any, Tensor, Tensor]:
    """A network of a head, features of a text, and its units."""
    stored = HEADS[name]
    model = tiny_models.llama()
    network = stored.network(IDS)
    network.join(model.get_input_embeddings(), model.get_output_embeddings(), model.device, torch.float32)
    units = torch.randint(IDS, (1, 13), generator=torch.Generator().manual_seed(4))
    return network, features_of(stored, units[0])[None].float(), units


@pytest.mark.parametrize("name", HEADS)
def test_drafts_along_a_text_are_those_of_the_forward_written_out(name: str) -> None:
    """Behind every row that ends a block, five units deep; before that, all units alike."""
    network, features, units = learning(name)
    block, steps = network.architecture.block, 5
    with torch.no_grad():
        scored = torch.stack(list(along(network, features, units, steps)))  # [step, 1, row, vocab]
    assert not bool(scored[:, :, : block - 1].any())
    reference, known = forward(written_out(HEADS[name]), block), units[0].tolist()
    for row in range(block - 1, scored.shape[2]):
        path = known[row + 2 : row + 1 + steps]
        wanted = torch.stack(reference.draft_logits(features[0, : row + 1], known[1 : row + 2], path))
        assert torch.allclose(scored[:, 0, row].double(), wanted, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.parametrize("name", HEADS)
def test_the_loss_is_of_all_rows_of_blocks_alike(name: str) -> None:
    """Written out: states of a pass in which blocks see themselves whole, features and units k places on."""
    network, features, units = learning(name)
    block, rows = network.architecture.block, units.shape[1] - network.architecture.block
    p = torch.rand(1, 13, IDS, generator=torch.Generator().manual_seed(6)).softmax(-1)
    top, loss = Top(*p.topk(IDS)), DraftLoss("kl", hard=0.1, decay=0.5, features=10.0)
    reference = forward(written_out(HEADS[name]), block)
    seen = [min((row // block + 1) * block, rows) for row in range(rows)]
    states = reference.run(list(zip(features[0, :rows], units[0, 1 : rows + 1].tolist(), strict=True)), seen)
    made = torch.stack(states)[None].float()
    with torch.no_grad():
        assert torch.allclose(in_blocks(network, features[:, :rows], units[:, 1 : rows + 1]), made, atol=1e-3)
        batch = Batch.whole(units)
        found = head_loss(lambda *_: Said(features, top), loss, block)(network, batch)
    scored = torch.stack([reference.logits(state) for state in states])[None].float()
    next_units = torch.nn.functional.pad(units[:, 1 + block :], (0, 1), value=-1)
    every = torch.ones(1, rows, dtype=torch.bool)
    wanted = draft_loss(scored, p[:, block:], every, 0, loss, next_units)
    wanted = wanted + 10 * feature_loss(made, features[:, block:], every)
    assert float(found) == pytest.approx(float(wanted), rel=1e-3)


@pytest.mark.parametrize("name", HEADS)
def test_a_share_of_errors_is_shown(name: str) -> None:
    """First rows of blocks have what they are to predict, as many as the share of the errors says; then no others."""
    network, features, units = learning(name)
    block, rows = network.architecture.block, units.shape[1] - network.architecture.block
    batch, told = Batch.whole(units, 3), units[:, 1 : rows + 1]
    with torch.no_grad():
        said = network.scored(in_blocks(network, features[:, :rows], told)).argmax(-1)
    same = glanced(network, features, batch, said, 0.45)
    assert torch.equal(same[0], features[:, :rows]) and torch.equal(same[1], told), "it makes no errors"
    read, shown_units = glanced(network, features, batch, (said + 1) % IDS, 0.45)  # it is always wrong
    shown = [row for row in range(rows) if not torch.equal(read[0, row], features[0, row])]
    for row in shown:
        assert torch.equal(read[0, row], features[0, row + block]) and shown_units[0, row] == units[0, row + 1 + block]
    others = [row for row in range(rows) if row not in shown]
    assert torch.equal(shown_units[0, others], told[0, others])
    first = [row for row in shown if row % block == 0]
    assert len(first) == int(0.45 * rows) // (1 if block == 2 else block)
    assert all(row % block < block - 1 and row - row % block in first for row in shown)
    drawn = [glanced(network, features, Batch.whole(units, seed), (said + 1) % IDS, 0.45)[1] for seed in range(9)]
    assert len({tuple(each[0].tolist()) for each in drawn}) > 1, "as a function of the batch"
    shares = [glanced_share(0.45, 100, replace(batch, number=number)) for number in (0, 50, 100)]
    assert shares == pytest.approx([0.45, 0.275, 0.1]), "the released schedule: 0.35 (E - e) / E + 0.1"
