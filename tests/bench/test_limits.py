"""Formulas against brute force and by hand."""

import itertools
from dataclasses import replace

import pytest
import torch

from mmspec.bench.forced import forced, forced_all
from mmspec.bench.limits import Floor, best_speedup, best_tree, pass_seconds, pipe
from mmspec.bench.memory import peak_growth, weights
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.host import Hosted
from mmspec.core.types import Draft
from mmspec.report.result import Row
from mmspec.testing.toys.markov import MarkovTarget
from mmspec.testing.toys.markov_drafters import MarkovTree

CHANCES = (0.6, 0.2, 0.1)


def expected(parents, ranks):
    """Units that a tree emits: every node is reached with the product of the chances on its path."""
    reached = [1.0]
    for parent, rank in zip(parents, ranks, strict=True):
        reached.append(reached[parent] * CHANCES[rank])
    return sum(reached)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_best_tree_is_the_best_of_all_trees(nodes):
    trees = []
    for parents in itertools.product(*(range(i) for i in range(1, nodes))):
        ranks = [parents[:i].count(p) for i, p in enumerate(parents)]
        if max(ranks, default=0) < len(CHANCES):
            trees.append(expected(parents, ranks))
    assert best_tree(CHANCES, nodes) == pytest.approx(max(trees))


def test_best_tree_of_a_chain_is_a_geometric_sum():
    assert best_tree([0.7], 4) == pytest.approx(1 + 0.7 + 0.49 + 0.343)
    assert best_tree([], 9) == 1.0


def test_the_best_speedup_spends_what_is_free():
    flat = Floor(bandwidth=1.0, arithmetic=1.0, read=8.0, operations=1.0)  # eight nodes cost as much as one
    assert flat(1) == flat(8) == 8.0 and flat(16) == 16.0
    assert best_speedup([0.5], flat) == pytest.approx(best_tree([0.5], 8))


ROW = Row("m", "invariant", "s", 20, 3, 2.0, [0.5], [1.0], [1.0], 1.0, 0.5, 4.0, 0.5, passes_by_nodes={"1": 2, "3": 1})


def test_pipe_is_what_drafts_and_passes_would_take_of_what_rounds_took():
    assert pipe(ROW, {1: 1.0, 2: 1.5, 4: 2.5}) == pytest.approx((0.5 + 2 * 1.0 + 2.0) / 5.0)
    assert pipe(replace(ROW, rest_s=5.5), {1: 1.0, 3: 2.0}) == pytest.approx(0.45)


def test_passes_of_every_size_are_timed_on_one_prompt():
    seen = []

    class Watched(MarkovTarget):
        def verify(self, cache, draft, first=0):
            seen.append(draft.nodes)
            return super().verify(cache, draft, first)

    target = Watched(MarkovTarget.random(5, 0).table)
    seconds = pass_seconds(target, torch.tensor([[0, 1]]), (1, 3), repeats=2)
    assert set(seconds) == {1, 3} and all(s > 0 for s in seconds.values())
    assert seen == [1, 3] * 5


def test_memory_is_the_peak_not_the_sum():
    def work():
        for _ in range(3):
            torch.zeros(2**18)

    assert 2**20 <= peak_growth(work, "cpu") < 2**20 + 2**16
    assert weights(torch.nn.Linear(3, 5)) == 4 * (15 + 5)


class Next:
    """Counts up, as the text does but for one place."""

    def propose(self, tokens, k):
        return [[(row[-1] + i + 1) % 10 for i in range(k)] for row in tokens]


TEXT = torch.tensor([[0, 1, 2, 3, 4, 5, 9, 0, 1, 2]])


def test_the_text_decides_and_hits_count():
    led = forced(Decoder(MarkovTarget.random(10, 0), Hosted(Next()), k=3), TEXT, 2)
    # Root 2: hits 3, 4, 5 and is told 9. Root 9: hits 0, 1; there is no room for a third, and 2 is the last unit.
    assert (led.rounds, led.emitted, led.nodes) == (2, 7, 7)
    assert led.acceptance_length == 3.5 and led.hits == {0: 5}
    both = forced_all(Decoder(MarkovTarget.random(10, 0), Hosted(Next()), k=3), [TEXT, TEXT], 2)
    assert (both.rounds, both.emitted) == (4, 14)


def test_ranks_are_those_of_the_children_that_were_right():
    class Pair(MarkovTree):
        """Two children of the root: wrong, right."""

        def propose(self, state, k, noise):
            right = (state.root[:, None] + 1) % 10
            return Draft.tree(torch.cat([(right + 3) % 10, right], 1), [-1, -1])

    target = MarkovTarget.random(10, 0)
    led = forced(Decoder(target, Pair(target.table), k=2), TEXT, 2)
    assert set(led.hits) == {1} and led.by_rank[0] == 0 and led.by_rank[1] == led.hits[1] / led.visits
    assert led.visits == led.rounds - 1, "the last round has no room for a draft"
