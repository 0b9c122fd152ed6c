"""Lookahead decoding: window and pool by hand, round by round."""

from typing import Any

import torch

from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_text.drafters.lookahead import ROOT, Lookahead, LookaheadOptions, Row, Tree


def counting() -> MarkovTarget:
    """A target that counts 0, 1, … 6, 0, …"""
    table = torch.zeros(7, 7, 7)
    for unit in range(7):
        table[:, unit, (unit + 1) % 7] = 9.0
    return MarkovTarget(table)


def paths(nodes: list[Any]) -> list[list[int]]:
    """The units of the path to every node."""
    found: list[list[int]] = []
    for node in nodes:
        found.append([*(found[node.parent] if node.parent != ROOT else []), node.unit])
    return found


def test_the_window_by_hand() -> None:
    """N = 3, W = 2, the prompt 3 5 1 4, and a target that counts.

    Row 0 has W + N - 2 = 3 columns: 5 1 4, whose first place the root takes.
    Round 1, root 5: fed are 1, 4 behind it. The target says 6 | 2 | 5. The root's column goes: row 0 is (root) 4, and
    row 1 is 2 5.
    Round 2, root 6: the cells (0, 1) = 4 and (1, 0) = 2 are below the root, (1, 1) = 5 below 4. The target says 3
    behind 2 and 6 behind 5: the n-grams 6 2 3 and 4 5 6. The window moves on: row 0 is (root) 5, row 1 is 3 6.
    Round 3, root 4: (0, 1) = 5, (1, 0) = 3, and (1, 1) = 6 below 5; so the n-gram 4 5 6 needs no node of its own. The
    target says 4 behind 3 and 0 behind 6: the n-grams 4 3 4 and 5 6 0.
    Round 4, root 4 again: the window 6, 4, 6 0, then the n-grams of 4, the latest first.
    """
    row = Row([3, 5, 1, 4], columns=2, n=3, guesses=2, from_prompt=False)
    assert paths(row.tree(5, 9)) == [[1], [1, 4]]
    row.learn([6, 2, 5])
    assert paths(row.tree(6, 9)) == [[4], [2], [4, 5]]
    row.learn([0, 5, 3, 6])
    assert row.pool == {6: [(6, 2, 3)], 4: [(4, 5, 6)]}
    assert paths(row.tree(4, 9)) == [[5], [3], [5, 6]]
    row.learn([5, 6, 4, 0])
    assert row.pool[4] == [(4, 5, 6), (4, 3, 4)] and row.pool[5] == [(5, 6, 0)]
    assert paths(row.tree(4, 9)) == [[6], [4], [6, 0], [3], [3, 4], [5], [5, 6]]


def test_the_latest_n_grams_are_kept_and_tried_first() -> None:
    row = Row([1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2, 4], columns=1, n=3, guesses=2, from_prompt=True)
    assert row.pool[1] == [(1, 2, 5), (1, 2, 4)]
    assert paths(row.tree(1, 9))[-3:] == [[2], [2, 4], [2, 5]]
    assert paths(row.tree(1, 1))[-1:] == [[2]]  # no deeper than asked


def test_equal_siblings_are_one_node() -> None:
    tree = Tree()
    assert tree.child(tree.child(ROOT, 5), 6) == tree.child(tree.child(ROOT, 5), 6) == 1


def test_what_was_not_verified_is_not_known() -> None:
    row = Row([1, 2, 3], columns=2, n=2, guesses=2, from_prompt=False)
    row.tree(4, 9)
    row.learn([5, -1])
    assert row.pool == {4: [(4, 5)]}
    assert row.tree(5, 9) == []  # its only guess is unknown


def test_rounds_of_a_decoder() -> None:
    """The target counts: in the third round, n-grams made in the call are right, and all of them are accepted."""
    decoder = Decoder(counting(), Lookahead(LookaheadOptions(n=3, guesses=2, from_prompt=False)), k=3)
    state = decoder.start(torch.tensor([[3, 5, 1, 4]]), 40, warp=Warp.sampling(temperature=0))
    counts = []
    while not state.finished:
        decoder.advance(state)
        counts.append(int(state.step.count))
    assert not state.report.faults
    assert counts[0] == 1 and max(counts) == 3 and sum(counts) == 39
    plain = Decoder(counting()).generate(torch.tensor([[3, 5, 1, 4]]), 40, warp=Warp.sampling(temperature=0))
    assert torch.equal(state.output()[0], plain.units[0])
