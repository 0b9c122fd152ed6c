"""Shapes: which nodes a draft tree has, and what each was drawn from."""

import itertools
import math

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.shapes import Beam, Branching, Chain, Frontier, Heap, Rerank
from mmspec.core.drafters.shapes.beam import conditioned
from mmspec.core.drafters.shapes.siblings import race
from mmspec.core.rules import Match, RecursiveRejection
from mmspec.core.warp import Warp
from mmspec.testing.toys.history import HistoryTarget
from tests.support.laws import assert_follows

LARGE = HistoryTarget.random(6, seed=3)
SMALL = LARGE.near(4)
PROMPT = torch.tensor([[0, 1]])


def drafted(shape, rule=None, k=3, rows=4, seed=0, **options):
    """One draft, and the state that it was made for."""
    decoder = Decoder(LARGE, DraftModel(SMALL, shape), rule or Match(), k=k)
    state = decoder.start(PROMPT.expand(rows, -1), 30, seed=seed, **options)
    draft = decoder.drafter.propose(state, k, decoder.rule.draft_noise(state.round()))
    return draft, state


def paths(draft, row):
    """Units from the root's child to every node."""
    index = draft.index
    ancestor = index.ancestor[row if len(index.ancestor) > 1 else 0, 1:, 1:]
    return [tuple(draft.units[row][above].tolist()) for above in ancestor]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "shape", [Chain(), Branching((4, 2, 1)), Beam(1), Beam(3), Rerank(2, 3, 4), Rerank(5, 5, 60), Heap(3, 7)]
)
def test_bounds_are_those_of_the_draft(shape, k):
    for rule in (Match(), *([] if isinstance(shape, Rerank) else [RecursiveRejection()])):
        draft, state = drafted(shape, rule, k)
        assert draft.units.shape[1] == shape.width(k) and draft.valid.all()
        depth = draft.index.depth
        assert depth.max() == draft.index.deepest == shape.levels(k) or isinstance(shape, Rerank | Heap)
        assert depth.max() <= draft.index.deepest <= k and draft.index.rank.max() < draft.index.widest
        if state.memory.scratch is not None:
            fed, most = state.memory.scratch.fed.nodes, shape.fed(k) + 1
            assert fed <= most if isinstance(shape, Heap) else fed == most  # the promising nodes are counted
        for row in range(4):
            assert len(set(paths(draft, row))) == shape.width(k), "siblings are distinct"


def test_one_beam_and_one_child_are_the_chain():
    for rule in (RecursiveRejection(), Match()):
        chain, _ = drafted(Chain(), rule)
        for shape in (Beam(1), Branching((1, 1, 1))):
            other, _ = drafted(shape, rule)
            assert torch.equal(chain.units, other.units) and torch.allclose(chain.score, other.score)
            assert (chain.distribution is None) == (other.distribution is None)
            if chain.distribution is not None:
                assert torch.allclose(chain.distribution.probs, other.distribution.probs, atol=1e-6)


def test_more_siblings_than_units_are_not_valid():
    """Top-2 sampling leaves two units: third siblings have no distribution, and are never tried."""
    for shape in (Branching((3, 3)), Beam(4), Heap(3, 12)):
        draft, state = drafted(shape, RecursiveRejection(), 2, warp=Warp.sampling(top_k=2))
        assert 0 < draft.valid.sum() < draft.valid.numel()
        rooted = draft.rooted(state.root, state.room)
        assert rooted.index.rank.expand_as(rooted.valid)[rooted.valid].max() == 1
        assert draft.distribution.probs.isfinite().all()
        sums = draft.distribution.probs.sum(-1)[draft.valid]
        assert torch.allclose(sums, torch.ones_like(sums), atol=1e-5)


def test_perturbed_values_are_those_of_the_formula():
    drawn = torch.randn(5, 3, 4).double().sort(-1, descending=True).values
    above = torch.randn(5, 3).double()
    z, g = drawn[..., :1], above[..., None]
    expected = -torch.log(torch.exp(-g) - torch.exp(-z) + torch.exp(-drawn))
    value = conditioned(drawn, above)
    assert torch.allclose(value, expected) and torch.equal(value[..., 0], above)
    assert (value.diff(dim=-1) <= 0).all()
    far = conditioned(torch.tensor([[[50.0, -60.0, -math.inf]]]), torch.tensor([[-3.0]]))
    assert far.tolist() == [[[-3.0, pytest.approx(-60.0, abs=1e-4), -math.inf]]]
    impossible = conditioned(torch.tensor([[[-math.inf, -math.inf]]]), torch.tensor([[-math.inf]]))
    assert impossible.tolist() == [[[-math.inf] * 2]]


def test_a_beam_draws_sequences_without_replacement():
    """The two deepest nodes, in order, against enumeration: P(a, b) = q(a) q(b) / (1 - q(a)) over whole sequences."""
    vocab = 3
    tables = torch.randn(1 + vocab, vocab, generator=torch.Generator().manual_seed(0)) * 1.5
    q = tables.softmax(-1)
    sequences = list(itertools.product(range(vocab), repeat=2))
    distribution = torch.tensor([float(q[0, a] * q[1 + a, b]) for a, b in sequences]).double()
    joint = distribution[:, None] * distribution / (1 - distribution[:, None])
    joint.fill_diagonal_(0)

    def sample(seed, rows):
        generator = torch.Generator().manual_seed(seed)

        class Plain:
            def exponential(self, size):
                return torch.empty(rows, self.nodes, size).exponential_(generator=generator)

        noise, shape = Plain(), Beam(2)
        noise.nodes = 1
        first = Frontier(Categorical(q[:1].expand(rows, 1, -1)), noise, torch.zeros(rows, 1), False, True)
        level = shape.level(first, 1)
        noise.nodes = 2
        second = Frontier(Categorical(q[1 + level.units]), noise, level.score, False, True, level.carried)
        deep = shape.level(second, 2)
        return level.units.gather(1, deep.parent) * vocab + deep.units

    assert_follows(sample, joint, rows=60_000)


def eagle2(distribution, k, frontier, children, nodes):
    """EAGLE-2 by the book: `distribution(path)` gives every unit's log score as a child, `-inf` where it cannot be
    one.
    """
    level, seen = [((), 0.0)], []
    for _ in range(k):
        found = []
        for path, score in level:
            best = sorted(enumerate(distribution(path)), key=lambda x: -x[1])[:children]
            found += [((*path, unit), score + own) for unit, own in best]
        seen += found
        level = sorted(found, key=lambda x: -x[1])[:frontier]
    return dict(sorted(seen, key=lambda x: -x[1])[:nodes])


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize(("frontier", "children", "nodes"), [(3, 3, 8), (1, 4, 6), (4, 2, 30)])
def test_rerank_is_eagle2(greedy, frontier, children, nodes):
    shape, k = Rerank(frontier, children, nodes, spread=0.6), 3
    draft, state = drafted(shape, Match(), k, rows=6, warp=Warp.sampling(temperature=0.0 if greedy else 0.9))
    race = state.source.by_position(state.emitted, state.host.emitted, k - 1).exponential(6)
    for row in range(6):
        known = [0, 1, *state.history[row, 2 : 2 + state.host.emitted[row]].tolist()]

        def scores(path, row=row, known=known):
            logits = SMALL.next_distribution(known, lambda x: x if greedy else x / 0.9)(path).log()
            if not greedy:
                logits = (logits - race[row, len(path)].log()) / 0.6
            return logits.log_softmax(-1).tolist()

        expected = eagle2(scores, k, frontier, children, nodes)
        mine = dict(zip(paths(draft, row), draft.score[row].tolist(), strict=True))
        assert mine.keys() == expected.keys()
        assert all(mine[path] == pytest.approx(expected[path], abs=1e-3) for path in mine)
        depths = [len(path) for path in paths(draft, row)]
        assert depths == sorted(depths), "generation order"
    assert (draft.index.parent[:, 1:] < torch.arange(1, draft.units.shape[1] + 1)).all()


def heap(distribution, k, children, nodes):
    """DySpec's heap, with the likeliest children in place of drawn ones: the best candidate joins the tree."""
    candidates, tree = [], {}

    def push(path, score):
        best = sorted(enumerate(distribution(path)), key=lambda x: -x[1])[:children]
        candidates.extend((score + own, (*path, unit)) for unit, own in best)

    push((), 0.0)
    while len(tree) < nodes and candidates:
        score, path = max(candidates)
        candidates.remove((score, path))
        tree[path] = score
        if len(path) < k:
            push(path, score)
    return tree


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize(("children", "nodes"), [(3, 8), (6, 5), (2, 30)])
def test_greedy_is_dyspec(greedy, children, nodes):
    """In two successive rounds; rows have trees of different forms."""
    k = 3
    decoder = Decoder(LARGE, DraftModel(SMALL, Rerank(None, children, nodes, spread=0.6)), Match(), k=k)
    warp = Warp.sampling(temperature=0.0 if greedy else 0.9)
    state, forms = decoder.start(PROMPT.expand(6, -1), 30, seed=list(range(6)), warp=warp), set()
    for _ in range(2):
        draft = decoder.drafter.propose(state, k, decoder.rule.draft_noise(state.round()))
        race = state.source.by_position(state.emitted, state.host.emitted, k - 1).exponential(6)
        for row in range(6):
            known = [0, 1, *state.history[row, 2 : 2 + state.host.emitted[row]].tolist()]

            def scores(path, row=row, known=known, race=race):
                logits = SMALL.next_distribution(known, lambda x: x if greedy else x / 0.9)(path).log()
                if not greedy:
                    logits = (logits - race[row, len(path)].log()) / 0.6
                return logits.log_softmax(-1).tolist()

            expected = heap(scores, k, children, nodes)
            mine = dict(zip(paths(draft, row), draft.score[row].tolist(), strict=True))
            assert mine.keys() == expected.keys()
            assert all(mine[path] == pytest.approx(expected[path], abs=1e-3) for path in mine)
            forms.add(tuple(draft.index.parent[row].tolist()))
        decoder.advance(state)
    assert greedy or nodes == 30 or len(forms) > 1, "all trees have one form"


def dyspec(distribution, order, k, children, nodes):
    """DySpec as its paper has it: slots have values, and a unit is drawn into the one with the largest.

    Args:
        distribution: The draft model's, behind a path.
        order: All units in the order in which they are drawn behind a path.
        k: Most units of a path.
        children: Most children of a node.
        nodes: Slots that are filled.

    Returns:
        The value of the slot of every drawn path, and what its unit was drawn from.
    """
    slots, tree = [(1.0, (), 0, distribution(()))], {}
    while slots and len(tree) < nodes:
        slot = max(slots, key=lambda x: x[0])
        slots.remove(slot)
        value, above, rank, rest = slot
        unit = order(above)[rank]
        if not rest[unit] > 0:
            continue
        path, chance = (*above, unit), rest[unit]
        tree[path] = (value, rest)
        if rank + 1 < children:
            left = [0.0 if x == unit or mass == 0 else mass / (1 - chance) for x, mass in enumerate(rest)]
            slots.append((value * (1 - chance), above, rank + 1, left))
        if len(path) < k:
            slots.append((value * chance, path, 0, distribution(path)))
    return tree


@pytest.mark.parametrize("rule", [RecursiveRejection(), Match()], ids=["recursive-rejection", "match"])
@pytest.mark.parametrize(("children", "nodes"), [(3, 8), (6, 5), (2, 30)])
def test_heap_is_dyspec_with_values_before_the_draw(rule, children, nodes):
    """In two successive rounds: which nodes, the value of each, and what it was drawn from."""
    k = 3
    decoder = Decoder(LARGE, DraftModel(SMALL, Heap(children, nodes)), rule, k=k)
    warp = Warp.sampling(temperature=0.9)
    state, forms = decoder.start(PROMPT.expand(6, -1), 30, seed=list(range(6)), warp=warp), set()
    for _ in range(2):
        drawn = {}  # by row and path: the race of the children

        class Seen(Heap):
            def level(self, frontier, depth, drawn=drawn):
                drawn[depth] = race(frontier), frontier
                return super().level(frontier, depth)

        memory = state.memory
        memory.shape = Seen(children, nodes)
        draft = decoder.drafter.propose(state, k, rule.draft_noise(state.round()))
        for row in range(6):
            known = [0, 1, *state.history[row, 2 : 2 + state.host.emitted[row]].tolist()]
            behind = SMALL.next_distribution(known, lambda x: x / 0.9)
            ways = {tuple(round(p, 5) for p in probs): values for probs, values in races(drawn, row)}

            def order(path, behind=behind, ways=ways):
                values = ways[tuple(round(p, 5) for p in behind(path).float().tolist())]
                return sorted(range(len(values)), key=lambda x: -values[x])

            expected = dyspec(lambda path, behind=behind: behind(path).tolist(), order, k, children, nodes)
            mine = dict(zip(paths(draft, row), draft.score[row].exp().tolist(), strict=True))
            assert mine.keys() == expected.keys()
            assert all(mine[path] == pytest.approx(expected[path][0], abs=1e-3) for path in mine)
            if draft.distribution is not None:
                for path, probs in zip(paths(draft, row), draft.distribution.probs[row].tolist(), strict=True):
                    assert probs == pytest.approx(expected[path][1], abs=1e-3)
            forms.add(tuple(draft.index.parent[row].tolist()))
        assert (draft.distribution is None) == isinstance(rule, Match)
        decoder.advance(state)
    assert nodes == 30 or len(forms) > 1, "all trees have one form"


def races(drawn, row):
    """Every node's distribution, and its race, in one row."""
    for values, frontier in drawn.values():
        yield from zip(frontier.distribution.probs[row].tolist(), values[row].tolist(), strict=True)


def test_chosen_nodes_are_closed_under_ancestors_where_scores_tie():
    """Certain distributions: children score as their parents do."""
    certain = HistoryTarget(torch.where(torch.arange(6) == torch.arange(61)[:, None] % 6, 60.0, 0.0))
    for nodes in range(1, 9):
        decoder = Decoder(certain, DraftModel(certain, Rerank(2, 3, nodes)), k=4)
        state = decoder.start(PROMPT, 20)
        draft = decoder.speculate(state).draft
        chain = next(i for i in range(1, 6) if i == min(nodes, 4))
        assert (draft.index.depth[draft.valid].max()) == chain
        assert decoder.generate(PROMPT, 21).report.acceptance_length == pytest.approx(1 + chain, abs=0.4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Branching(()),
        lambda: Branching((2, 0)),
        lambda: Beam(0),
        lambda: Rerank(0),
        lambda: Heap(0),
        lambda: Heap(2, 0),
        lambda: Rerank(spread=0),
        lambda: Rerank(None, nodes=0),
    ],
)
def test_knobs_out_of_range(make):
    with pytest.raises(ValueError, match=r"at least 1|positive"):
        make()
