"""Formulas against brute force and by hand."""

import itertools
from dataclasses import replace

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.host import HostDrafterAdapter
from mmspec.core.types import Draft
from mmspec.hosts import linear
from mmspec.report.result import Row
from mmspec.testing.toys.markov import MarkovTarget
from mmspec.testing.toys.markov_drafters import MarkovTree
from tools.bench.limits import Floor, best_speedup, best_tree, loop_efficiency
from tools.bench.memory import footprint, peak_growth, weights
from tools.bench.text.teacher_forcing import teacher_force

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


ROW = Row("m", "invariant", "s", 20, 3, 2.0, [0.5], [1.0], [1.0], 0.5, 4.0, 0.5, passes_by_nodes={"1": 2, "3": 1})


def test_pipe_is_what_drafts_and_passes_would_take_of_what_rounds_took():
    assert loop_efficiency(ROW, {1: 1.0, 2: 1.5, 4: 2.5}) == pytest.approx((0.5 + 2 * 1.0 + 2.0) / 5.0)
    assert loop_efficiency(replace(ROW, rest_s=5.5), {1: 1.0, 3: 2.0}) == pytest.approx(0.45)


def test_memory_is_the_peak_not_the_sum():
    def work():
        for _ in range(3):
            torch.zeros(2**18)

    assert 2**20 <= peak_growth(work, "cpu") < 2**20 + 2**16
    assert weights(torch.nn.Linear(3, 5)) == 4 * (15 + 5)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
def test_copies_of_weights_are_part_of_what_a_method_takes():
    """They are made once and stay: no call adds them, and nobody sees them who asks a call."""
    model, other = torch.nn.Sequential(torch.nn.Linear(512, 1024)), torch.nn.Sequential(torch.nn.Linear(512, 1024))
    (kernel,), x = linear.kernels(model), torch.ones(1, 512)

    @torch.no_grad()
    def work():
        kernel(x)

    assert linear.laid_out(model) == 0
    taken = footprint(work, [model], "cpu")
    assert 4 * 512 * 1024 <= taken.laid_out < 1.1 * 4 * 512 * 1024 and linear.laid_out(other) == 0
    assert taken.laid_out + weights(model) <= taken.peak < taken.laid_out + weights(model) + 2**16
    both = footprint(work, [model, other], "cpu")
    assert both.laid_out == taken.laid_out and both.peak - taken.peak == pytest.approx(weights(other), abs=2**12)
    late, calls = torch.nn.Sequential(torch.nn.Linear(512, 1024)), []
    (kernel,) = linear.kernels(late)

    @torch.no_grad()
    def patient():
        calls.append(1)
        (late if len(calls) == 1 else kernel)(x)

    taken_late = footprint(patient, [late], "cpu")
    assert taken_late.laid_out == taken.laid_out and taken_late.peak == pytest.approx(taken.peak, abs=2**16)
    stock = footprint(lambda: other(x), [other], "cpu")
    assert stock.laid_out == 0 and weights(other) <= stock.peak < weights(other) + 2**16


class Next:
    """Counts up, as the text does but for one place."""

    def propose(self, tokens, k):
        return [[(row[-1] + i + 1) % 10 for i in range(k)] for row in tokens]


TEXT = torch.tensor([[0, 1, 2, 3, 4, 5, 9, 0, 1, 2]])


def test_the_text_decides_and_hits_count():
    led = teacher_force(Decoder(MarkovTarget.random(10, 0), HostDrafterAdapter(Next()), k=3), [TEXT], 2)
    # Root 2: hits 3, 4, 5 and is told 9. Root 9: hits 0, 1; there is no room for a third, and 2 is the last unit.
    assert (led.rounds, led.emitted, led.nodes) == (2, 7, 7)
    assert led.acceptance_length == 3.5 and led.hits == {0: 5}
    both = teacher_force(Decoder(MarkovTarget.random(10, 0), HostDrafterAdapter(Next()), k=3), [TEXT, TEXT], 2)
    assert (both.rounds, both.emitted) == (4, 14)


def test_ranks_are_those_of_the_children_that_were_right():
    class Pair(MarkovTree):
        """Two children of the root: wrong, right."""

        def propose(self, state, k, noise):
            right = (state.root[:, None] + 1) % 10
            return Draft.tree(torch.cat([(right + 3) % 10, right], 1), [-1, -1])

    target = MarkovTarget.random(10, 0)
    led = teacher_force(Decoder(target, Pair(target.table), k=2), [TEXT], 2)
    assert set(led.hits) == {1} and led.by_rank[0] == 0 and led.by_rank[1] == led.hits[1] / led.visits
    assert led.visits == led.rounds - 1, "the last round has no room for a draft"
