"""Sequoia: what it counts in two rounds, by hand, the trees that follow."""

from typing import Any

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.static_tree import likeliest_tree
from mmspec.core.rules import RecursiveRejection
from mmspec.core.warp import Warp
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_text.drafters.sequoia import Sequoia, SequoiaOptions
from tests.support import random_models


def counting(step: int, second: int) -> MarkovTarget:
    """A target whose first choice is `step` further on of seven units, its second choice `second` further."""
    table = torch.zeros(7, 7, 7)
    for unit in range(7):
        table[:, unit, (unit + step) % 7] = 9.0
        table[:, unit, (unit + second) % 7] = 8.0
    return MarkovTarget(table)


def drafting(model: MarkovTarget, **options: Any) -> Sequoia:
    made = Sequoia(SequoiaOptions(model=random_models.small(), **options))
    made.bind = lambda target: setattr(made, "model", model)  # type: ignore[method-assign]
    return made


def test_two_rounds_by_hand() -> None:
    """The target goes on by 2, which is the drafter's second choice. With rates 0.5 and 0.3 the best four nodes of two
    levels are a first child (0.5), a second (0.3), the first's first (0.25), and of 0.15 twice the first's second.

    In each round the root's second child is accepted, which has no children: two children were tried there.
    """
    drafter = drafting(counting(1, 2), nodes=4, rates=(0.5, 0.3), prior=2.0)
    decoder = Decoder(counting(2, 3), drafter, k=2)
    state = decoder.start(torch.tensor([[0, 0]]), 12, warp=Warp.sampling(temperature=0))
    assert drafter.shape.tree == (-1, -1, 0, 0) and drafter.shape.ranks == (0, 1, 0, 1)
    rounds = []
    for _ in range(2):
        decoder.advance(state)
        rounds.append((state.step.draft.drafted[0].tolist(), drafter.tried.tolist(), drafter.right.tolist()))
    # The prefill emits 2; 3 and 4 stand behind it, 4 and 5 behind 3. The target takes 4, and 6 comes.
    assert rounds[0] == ([3, 4, 4, 5], [1, 1], [0, 1])
    assert rounds[1] == ([0, 1, 1, 2], [2, 2], [0, 2])
    # (0 + 2 · 0.5) / (2 + 2), and (2 + 2 · 0.3) / 4, which is no more than the rank before it may have.
    assert drafter.rates == (0.25, 0.25)
    while not state.finished:
        decoder.advance(state)
    later = decoder.start(torch.tensor([[0, 0]]), 12, warp=Warp.sampling(temperature=0))
    assert later.memory.shape.tree == likeliest_tree(drafter.rates, 2, 4)[0] == (-1, -1, 0, 0)


def test_a_good_model_gets_a_chain_and_a_bad_one_siblings() -> None:
    trees = []
    for model in (counting(2, 3), counting(1, 2)):
        drafter = drafting(model, nodes=4, rates=(0.5, 0.3), prior=1.0)
        decoder = Decoder(counting(2, 3), drafter, k=4)
        decoder.generate(torch.tensor([[0, 0]]), 40, warp=Warp.sampling(temperature=0))
        decoder.generate(torch.tensor([[0, 0]]), 8, warp=Warp.sampling(temperature=0))
        trees.append(drafter.shape.tree)
    assert trees[0] == (-1, 0, 1, 2) and trees[1].count(-1) == 2


def test_two_calls_side_by_side_keep_their_trees() -> None:
    """A call that begins while another runs may have another tree; the first goes on with its own."""
    drafter = drafting(counting(2, 3), nodes=4, rates=(0.5, 0.3), prior=1.0)
    decoder = Decoder(counting(2, 3), drafter, k=4)
    states = [decoder.start(torch.tensor([[0, 0]]), 40, warp=Warp.sampling(temperature=0))]
    for _ in range(3):
        decoder.advance(states[0])
    states.append(decoder.start(torch.tensor([[0, 0]]), 40, warp=Warp.sampling(temperature=0)))
    assert states[0].memory.shape != states[1].memory.shape
    while not all(state.finished for state in states):
        for state in states:
            if not state.finished:
                decoder.advance(state)
    plain = Decoder(counting(2, 3)).generate(torch.tensor([[0, 0]]), 40, warp=Warp.sampling(temperature=0))
    assert all(torch.equal(state.output()[0], plain.units[0]) and not state.report.faults for state in states)


def test_recursive_rejection_keeps_the_law_while_trees_change() -> None:
    """The joint of two units, over calls that each begin with another tree: total variation of 3,000 rows from p."""
    target, model = counting(2, 3), counting(3, 2)
    target.table.div_(6), model.table.div_(6)  # so that all units matter
    drafter = drafting(model, nodes=5, rates=(0.5, 0.3), prior=1.0)
    decoder = Decoder(target, drafter, RecursiveRejection(), k=3)
    counts, shapes = torch.zeros(49), set()
    rows = torch.zeros(1000, 2, dtype=torch.int64)
    for seed in range(6):
        output = decoder.generate(rows, 4, seed=seed)
        shapes.add(drafter.shape.tree)
        pair = torch.stack([units[-2:] for units in output.units])
        counts += torch.bincount(pair[:, 0] * 7 + pair[:, 1], minlength=49)
    p = torch.softmax(target.table[0], -1)  # of a unit, after a unit
    start = p[0]
    for _ in range(2):
        start = start @ p
    joint = (start[:, None] * p).flatten()
    noise = (joint * (1 - joint) / counts.sum()).sqrt().sum() / 2  # what a true sample's distance is about, at most
    assert len(shapes) > 1 and float((counts / counts.sum() - joint).abs().sum() / 2) < 1.3 * float(noise)


def test_bad_options() -> None:
    with pytest.raises(ValueError, match="at most 1 together"):
        SequoiaOptions(rates=(0.9, 0.8))
    with pytest.raises(ValueError, match="sequoia needs a smaller model"):
        Sequoia()
