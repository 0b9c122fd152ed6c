"""The units that a row emits: ends inside the accepted path, the limit, finished rows; scores that are not finite."""

from dataclasses import replace

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.host import HostDrafterAdapter
from mmspec.core.philox import PhiloxSource
from mmspec.core.state import HostCopy, State
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, TargetOutput, Verdict
from mmspec.testing.toys.history import HistoryTarget
from mmspec.testing.toys.markov_drafters import MarkovTree

LARGE = HistoryTarget.random(9, seed=0)
PROMPT = torch.tensor([[1, 2], [3, 4], [5, 6]])


def started(limit: int, ends: list[int] | int | None = None) -> State:
    """Three rows that have emitted one unit, 0, which ends nothing."""
    state = Decoder(LARGE).start(PROMPT, limit, ends=None)
    ended = torch.tensor([ends] if isinstance(ends, int) else ends or [], dtype=torch.int64)
    state.live = replace(state.live, ends=ended, root=torch.zeros(3, dtype=torch.int64))
    state.history[:, 2] = 0
    return state


def verdict(accepted: list[int], unit: list[int], depth: int = 3) -> Verdict:
    """Accepts the first nodes of a chain."""
    length = torch.tensor(accepted)
    slot = torch.arange(depth)
    path = torch.where(slot < length[:, None], slot + 1, -1)
    return Verdict(path, length, torch.tensor(unit), torch.zeros(len(accepted), depth + 1, dtype=torch.int64))


def draft(units: list[list[int]]) -> Draft:
    rows = torch.tensor(units)
    return Draft.chain(rows).rooted(torch.zeros(len(rows), dtype=torch.int64), torch.full((len(rows),), 99))


def emitted(state: State) -> list[list[int]]:
    return [row[2 : 2 + n].tolist() for row, n in zip(state.history, state.emitted.tolist(), strict=True)]


def append(state: State, drafted: Draft, decided: Verdict, most: int | None = None) -> torch.Tensor:
    """The counts of units that a round appends."""
    state.reserve(drafted.index.deepest + 1)
    state.live, count = state.live.appended(drafted, decided, most)
    return count


CHAIN = draft([[1, 2, 3], [4, 5, 6], [7, 8, 1]])


def test_path_and_one_more_unit():
    state = started(limit=20)
    count = append(state, CHAIN, verdict([3, 0, 2], [8, 7, 6]))
    assert count.tolist() == [4, 1, 3]
    assert emitted(state) == [[0, 1, 2, 3, 8], [0, 7], [0, 7, 8, 6]]
    assert state.root.tolist() == [8, 7, 6] and state.known.tolist() == [7, 4, 6]
    assert not state.done.any() and state.room.tolist() == [14, 17, 15]


def test_a_tree_emits_its_path_and_not_its_first_nodes():
    state = started(limit=20)
    tree = Draft(torch.tensor([[0, 1, 2, 3, 4]] * 3), TreeIndex.static([-1, 0, 0, 2, 2]), torch.ones(3, 5).bool())
    path = torch.tensor([[2, 4], [1, -1], [-1, -1]])
    append(state, tree, Verdict(path, torch.tensor([2, 1, 0]), torch.tensor([5, 6, 7]), tree.units))
    assert emitted(state) == [[0, 2, 4, 5], [0, 1, 6], [0, 7]]


@pytest.mark.parametrize(("ends", "expected"), [(2, [[0, 1, 2], [0, 7], [0, 7, 8, 6]]), ([8, 7], None)])
def test_an_end_inside_the_path_ends_the_row(ends, expected):
    state = started(limit=20, ends=ends)
    count = append(state, CHAIN, verdict([3, 0, 2], [8, 7, 6]))
    expected = expected or [[0, 1, 2, 3, 8], [0, 7], [0, 7]]
    assert emitted(state) == expected
    assert count.tolist() == [len(row) - 1 for row in expected]
    assert state.done.tolist() == ([True, False, False] if ends == 2 else [True, True, True])
    assert [row[-1] for row in expected] == state.root.tolist()


def test_finished_rows_are_frozen():
    state = started(limit=20, ends=2)
    append(state, CHAIN, verdict([3, 0, 2], [8, 7, 6]))
    before = emitted(state)[0]
    for _ in range(3):
        count = append(state, CHAIN, verdict([1, 1, 0], [3, 3, 3]))
        assert count[0] == 0 and state.room[0] == 0
    assert emitted(state)[0] == before and state.root[0] == 2
    assert state.emitted.tolist() == [3, 8, 7]


def test_the_limit_cuts_and_ends():
    state = started(limit=3)
    count = append(state, CHAIN, verdict([3, 0, 1], [8, 7, 6]))
    assert count.tolist() == [2, 1, 2] and emitted(state) == [[0, 1, 2], [0, 7], [0, 7, 6]]
    assert state.done.tolist() == [True, False, True]


def test_most_units_of_a_round():
    state = started(limit=20)
    assert append(state, CHAIN, verdict([3, 0, 2], [8, 7, 6]), 2).tolist() == [2, 1, 2]
    assert emitted(state) == [[0, 1, 2], [0, 7], [0, 7, 8]]


class Broken(HistoryTarget):
    """Scores of row 1 are `filling` wherever a node stands at `position` (prompt included)."""

    def __init__(self, position: int, filling: float, unit: int | None = None) -> None:
        super().__init__(LARGE.table)
        self.where, self.filling, self.unit = position, filling, unit

    def after(self, units, length, draft):
        bad = super().position(length, draft) == self.where
        if self.unit is not None:
            bad &= draft.units == self.unit
        bad &= (torch.arange(len(bad)) == 1)[:, None]
        return torch.where(bad[..., None], self.filling, super().after(units, length, draft))

    def start(self, inputs, limit, width):
        begun = super().start(inputs, limit, width)
        if self.where < inputs.shape[1]:
            begun.output.logits[1] = self.filling
        return begun


@pytest.mark.parametrize("filling", [torch.nan, -torch.inf])
@pytest.mark.parametrize("drafter", [None, DraftModel(LARGE), MarkovTree(torch.randn(9, 9, 9), (2, 1), "top")])
def test_scores_that_are_no_distribution_name_row_and_position(filling, drafter):
    """A node at place n of the sequence scores place n + 1, which is new unit n + 1 - 2."""
    with pytest.raises(ValueError, match=r"row 1: .* new unit 5 are NaN or all -inf"):
        Decoder(Broken(6, filling), drafter, k=3).generate(PROMPT, 12)
    with pytest.raises(ValueError, match=r"row 1: .* new unit 0 "):
        Decoder(Broken(1, filling), drafter, k=3).generate(PROMPT, 12)


def test_scores_after_a_refused_unit_are_nobodys_business():
    """A drafted unit that the target would never emit may lead to invalid scores: plain decoding does not go
    there.
    """

    class Absurd:
        def propose(self, tokens, k):
            return [[8] * k for _ in tokens]

    table = LARGE.table.clone()
    table[:, 8] = -torch.inf
    target = Broken(6, torch.nan, unit=8)
    target.table = table
    plain = Decoder(target).generate(PROMPT, 12, seed=1).units
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            plain, Decoder(target, HostDrafterAdapter(Absurd()), k=3).generate(PROMPT, 12, seed=1).units, strict=True
        )
    )


def test_raw_takes_nodes_of_every_part():
    output = TargetOutput(logits=torch.arange(6.0).view(1, 3, 2), hidden=torch.arange(3.0).view(1, 3, 1))
    taken = output.take(torch.tensor([[2]]))
    assert taken.logits.tolist() == [[[4, 5]]] and taken.hidden.tolist() == [[[2]]] and taken.null is None


def test_a_finished_row_does_not_pin_old_noise():
    class Listening(PhiloxSource):
        def begin(self, host_emitted):
            self.asked = list(host_emitted)

    decoder = Decoder(LARGE)
    state = decoder.start(torch.tensor([[1, 2], [2, 1]]), 9, source=Listening.seeded(0, 2))
    state.host = HostCopy([1, 6], [True, False], state.host.pads)
    decoder.speculate(state)
    assert state.source.asked == [6, 6]
