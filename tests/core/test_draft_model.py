"""A smaller model with a cache of its own, beside a target whose distribution depends on its whole history."""

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import RepetitionPenaltyLogitsProcessor

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.draft_model import CATCH_UP, DraftModel
from mmspec.core.drafters.shapes import Beam, Branching, Chain, Heap, Rerank
from mmspec.core.policies import Confidence
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection
from mmspec.core.torch_noise import TorchSource
from mmspec.core.warp import Warp
from mmspec.testing.oracles import exact_joint
from mmspec.testing.toys.history import HistoryTarget
from tests.support.cycle import Cycle
from tests.support.laws import assert_follows

LARGE = HistoryTarget.random(3, seed=3)
SMALL = LARGE.near(4)
UNCOUNTED = [Chain(), Branching((3, 2, 1)), Beam(2), Rerank(2, 3, 5)]  # on the CPU, `Heap` counts promising nodes
SHAPES = [*UNCOUNTED, Heap(3, 5)]
RAGGED = (torch.tensor([[0, 0, 1, 2], [2, 1, 1, 0], [0, 0, 0, 2]]), torch.tensor([1, 0, 3]))


PLAIN = Decoder(LARGE).generate(RAGGED, 40, seed=1).units


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def perfect(drafter, limit=40, policy=None, warp=None, times=1):
    """Decodes with a drafter whose model is the target: every draft is accepted as deep as it goes (one that keeps the
    best nodes of several paths at least for a unit), or its model's cache is not what it should be. Returns the report.
    """
    decoder = Decoder(LARGE, drafter, k=3, policy=policy)
    state = decoder.start(RAGGED, limit, seed=1, warp=warp)
    while not state.finished:
        pending = [decoder.speculate(state) for _ in range(times)][-1]
        deepest = torch.where(pending.draft.valid, pending.draft.index.depth, 0).amax(1)
        deepest = deepest.clamp(max=1) if isinstance(drafter.shape, Rerank | Heap) else deepest
        step = decoder.settle(state, pending)
        assert (step.verdict.length >= deepest)[step.count > 0].all()
        state.report.rounds += 1
        state.sync()
    assert same(state.output(), Decoder(LARGE).generate(RAGGED, limit, seed=1, warp=warp).units)
    return state.report


@pytest.mark.thinned(1)
@pytest.mark.parametrize("budgets", [(3,), (0, 3), (3, 0, 0, 1), (2, 0), (1,)])
@pytest.mark.parametrize("shape", SHAPES)
def test_equal_to_plain_under_match(shape, budgets):
    for small in (SMALL, HistoryTarget.random(3, 99, sharpness=4.0)):
        drafted = Decoder(LARGE, DraftModel(small, shape), k=3, policy=Cycle(*budgets)).generate(RAGGED, 40, seed=1)
        assert same(PLAIN, drafted.units) and not drafted.report.faults
    report = perfect(DraftModel(LARGE, shape), policy=Cycle(*budgets))
    assert report.accepted > 20 and not report.faults


@pytest.mark.parametrize(
    ("rule", "policy", "shape"),
    [
        (Rejection(), Cycle(2, 0, 3), Chain()),
        (Block(), Confidence(3, 0.4), Chain()),
        (RecursiveRejection(), None, Chain()),
        (RecursiveRejection(), Cycle(3, 0, 2), Heap(2, 4)),
    ],
)
def test_exact_distribution(rule, policy, shape):
    def sample(seed: int, rows: int) -> torch.Tensor:
        decoder = Decoder(LARGE, DraftModel(SMALL, shape), rule, k=3, policy=policy)
        state = decoder.start(torch.tensor([[0, 1]]).expand(rows, -1), 5, seed=seed)
        while not state.finished:
            decoder.advance(state)
        return state.history[:, 2:7]

    assert_follows(sample, exact_joint(LARGE.next_distribution([0, 1]), 5, 3), rows=60_000)


class Blind(DraftModel):
    """As on a device, where reading the lag of the cache would be a host sync."""

    @staticmethod
    def _longest(memory, lag):
        assert (lag <= memory.lag).all()
        return memory.lag


@pytest.mark.thinned(1)
@pytest.mark.parametrize("drafter", [DraftModel, Blind])
@pytest.mark.parametrize(
    ("shape", "rule"),
    [
        (Chain(), Match()),
        (Chain(), Rejection()),
        (Chain(), Block()),
        (Branching((2, 2, 1)), RecursiveRejection()),
        (Branching((2, 1, 2)), Match()),
        (Beam(3), RecursiveRejection()),
        (Heap(2, 5), RecursiveRejection()),
    ],
)
def test_its_cache_is_the_true_history_and_its_distribution_the_one_it_drew_from(shape, rule, drafter):
    """After full acceptance, refusals, empty rounds, at an end unit: the distribution of a draft is recomputed from
    scratch.
    """
    decoder = Decoder(LARGE, drafter(SMALL, shape), rule, k=3, policy=Cycle(3, 2, 0, 3, 0, 0, 1))
    state = decoder.start(RAGGED, 60, seed=2, ends=None)
    depths = set()
    while not state.finished:
        lengths, active = state.known - state.pads - 1, ~state.done
        packed = state.history.gather(1, (state.pads[:, None] + torch.arange(64)).clamp(max=state.history.shape[1] - 1))
        pending = decoder.speculate(state)
        draft = pending.draft
        if draft.nodes > 1:
            parent = draft.index.parent[:, 1:].expand(state.rows, -1)
            after = SMALL.after(packed, lengths, draft).softmax(-1)
            at_parent = take_nodes(after, parent)
            if draft.distribution is not None:
                for row, node in draft.valid[:, 1:].mul(active[:, None]).nonzero().tolist():
                    left = at_parent[row, node].clone()
                    earlier = (parent[row] == parent[row, node]) & (torch.arange(draft.nodes - 1) < node)
                    left[draft.drafted[row][earlier]] = 0
                    assert torch.allclose(draft.distribution.probs[row, node], left / left.sum(), atol=1e-5)
            own = draft.index.ancestor[:, 1:, 1:].float() @ at_parent.amax(-1).log()[..., None]
            if not isinstance(shape, Heap):  # its scores: tests/core/test_shapes.py
                assert torch.allclose(draft.score[active], own[..., 0][active], atol=1e-4)
        step = decoder.settle(state, pending)
        depths.update(step.verdict.length[active].tolist())
        state.sync()
    assert depths == {0, 1, 2, 3} and not state.report.faults


def test_one_pass_a_level_and_only_the_root_behind_a_gap_goes_in_twice():
    fed = []

    class Counting(HistoryTarget):
        def verify(self, cache, draft, first=0):
            fed.append(int(draft.valid[:, first:].sum()))
            return super().verify(cache, draft, first)

    output = Decoder(LARGE, DraftModel(Counting(LARGE.table)), k=3).generate(RAGGED, 25, seed=1)
    report = output.report
    assert report.acceptance_length == 4 and len(fed) == 3 * report.rounds
    assert sum(fed) <= report.emitted + report.row_rounds


def test_its_distribution_is_warped_like_the_targets():
    warp = Warp.sampling(temperature=0.6, top_k=2)
    decoder = Decoder(LARGE, DraftModel(SMALL), Rejection(), k=3)
    state = decoder.start(RAGGED, 20, warp=warp)
    draft = decoder.speculate(state).draft
    assert ((draft.distribution.probs > 0).sum(-1) == 2).all() and (draft.distribution.of(draft.drafted) > 0).all()


RULES = {
    Chain: (Match(), Rejection(), Block(), RecursiveRejection()),
    Branching: (Match(), RecursiveRejection()),
    Beam: (Match(), RecursiveRejection()),
    Rerank: (Match(),),
    Heap: (Match(), RecursiveRejection()),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_drafts_are_greedy(shape):
    warp = Warp.sampling(temperature=0)
    plain = Decoder(LARGE).generate(RAGGED, 40, warp=warp).units
    for rule in RULES[type(shape)]:
        drafted = Decoder(LARGE, DraftModel(SMALL, shape), rule, k=3).generate(RAGGED, 40, warp=warp)
        assert same(plain, drafted.units) and not drafted.report.faults
    assert perfect(DraftModel(LARGE, shape), warp=warp).accepted > 60


@pytest.mark.parametrize("shape", SHAPES)
def test_history_of_every_node_is_its_own_path(shape):
    """A processor that looks at the history sees, at every node of the draft model, the path that leads to it."""
    warp = Warp([RepetitionPenaltyLogitsProcessor(1.7)])
    assert perfect(DraftModel(LARGE, shape), 20, warp=warp).accepted > 20


@pytest.mark.parametrize("shape", SHAPES)
def test_noise_of_torchs_generator(shape):
    made = []
    for drafter in (None, DraftModel(SMALL, shape)):
        generator = torch.Generator().manual_seed(5)
        source = TorchSource(generator, 3, torch.device("cpu"))
        units = Decoder(LARGE, drafter, k=3).generate(RAGGED, 20, source=source).units
        made.append([*units, generator.get_state()])
    assert same(*made)


@pytest.mark.parametrize("shape", SHAPES)
def test_two_proposals_before_a_round_is_settled(shape):
    """The later one counts, shorter or longer; the draft model's cache stays right: a perfect drafter stays so."""
    report = perfect(Blind(LARGE, shape), 60, Cycle(3, 1, 1, 3, 2, 0, 3), times=2)
    assert report.accepted > 40 and not report.faults


@pytest.mark.parametrize("shape", [pytest.param(s, marks=[pytest.mark.slow] * (i % 2)) for i, s in enumerate(SHAPES)])
def test_a_pass_that_fails_costs_its_round_only(shape):
    """Whichever pass of the draft model fails, the drafts of all other rounds are accepted."""

    class Failing(Blind):
        left = 0

        def _feed(self, *args):
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("out of paper")
            return super()._feed(*args)

    for left in range(1, 9):
        drafter = Failing(LARGE, shape)
        drafter.left = left
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = perfect(drafter)
        assert report.faults == 1 and report.accepted > 40


@pytest.mark.parametrize("shape", UNCOUNTED)
def test_a_round_reads_nothing_from_the_device(shape):
    class Refusing(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            assert function not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
            return function(*args, **(kwargs or {}))

    class OnADevice(DraftModel):
        watched = False

        def propose(self, *args):
            with Refusing() if self.watched else nullcontext():
                return super().propose(*args)

        def observe(self, *args):
            with Refusing() if self.watched else nullcontext():
                return super().observe(*args)

        @staticmethod
        def _longest(memory, lag):
            return memory.lag

    drafter = OnADevice(SMALL, shape)
    decoder = Decoder(LARGE, drafter, k=3)
    state = decoder.start(RAGGED, 40, seed=1)
    for turn in range(6):
        drafter.watched = turn > 2  # trees of one shape for all rows are built on first use
        decoder.advance(state)
    assert state.report.faults == 0 and state.report.accepted > 0


def test_a_long_gap_is_fed_in_passes_of_bounded_width():
    decoder = Decoder(LARGE, Blind(LARGE), k=3, policy=Cycle(*[0] * (3 * CATCH_UP), 3))
    report = decoder.generate(RAGGED, 120, seed=1).report
    assert report.faults == 0 and report.drafted == 3 * 6 and report.acceptance_rate == 1


class Short(HistoryTarget):
    context = 20

    def position(self, length, draft):
        place = super().position(length, draft)
        drafted = draft.valid & (draft.index.depth > 0)
        assert not drafted.any() or int(place[drafted].max()) < self.context
        return place


@pytest.mark.parametrize("shape", [Chain(), Branching((3, 2, 1))])
def test_near_the_end_of_its_context_a_row_depends_on_no_other(shape):
    rule = Rejection() if isinstance(shape, Chain) else RecursiveRejection()
    short, seeds = DraftModel(Short(SMALL.table), shape), [5, 6, 7]
    both = Decoder(LARGE, short, rule, k=3).generate(RAGGED, 40, seed=seeds)
    assert not both.report.faults and both.report.accepted > 10
    for row, seed in enumerate(seeds):
        prompt = RAGGED[0][row : row + 1], RAGGED[1][row : row + 1]
        alone = Decoder(LARGE, short, rule, k=3).generate(prompt, 40, seed=[seed])
        assert same(alone.units, both.units[row : row + 1])


def test_a_small_model_drafts_as_far_as_its_context():
    output = Decoder(LARGE, DraftModel(Short(LARGE.table)), k=3).generate(RAGGED, 40, seed=1)
    assert same(output.units, PLAIN) and not output.report.faults
    assert output.report.drafted > 0 and output.report.acceptance_rate == 1


@pytest.mark.parametrize(
    ("offers", "shape", "says"),
    [
        ({"discrete"}, Chain(), "does not offer grow, so it cannot draft a Chain"),
        ({"discrete", "grow"}, Beam(2), "does not offer tree, so it cannot draft a Beam"),
        (
            {"discrete", "grow", "tree"},
            Branching((2, 4)),
            "Branching wants 4 siblings, and there are 3 unit ids",
        ),
    ],
)
def test_models_that_cannot_draft_a_shape(offers, shape, says):
    class Poor(HistoryTarget):
        pass

    Poor.offers = frozenset(offers)
    with pytest.raises(ValueError, match=says):
        Decoder(LARGE, DraftModel(Poor(SMALL.table), shape))


def test_a_reranked_tree_is_refused_by_rules_that_use_q():
    for rule in (RecursiveRejection(), Rejection()):
        with pytest.raises(ValueError, match=r"DraftModel with .* nothing offers .*rerank"):
            Decoder(LARGE, DraftModel(SMALL, Rerank()), rule)


def test_rows_that_end_early_leave_the_others_alone():
    for end in range(3):
        plain = Decoder(LARGE).generate(RAGGED, 40, seed=1, ends=end).units
        drafted = Decoder(LARGE, DraftModel(SMALL), k=3).generate(RAGGED, 40, seed=1, ends=end).units
        assert all(torch.equal(a, b) for a, b in zip(plain, drafted, strict=True))
        assert len({len(row) for row in plain}) > 1 or end == 2
