"""From scores to distributions: every node with its own history, element-wise processors once."""

import math

import pytest
import torch
from transformers import NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper

from mmspec.core.distributions import Categorical, PointMass
from mmspec.core.history_processors import Prefix
from mmspec.core.types import Draft, TargetOutput
from mmspec.core.warp import Warp

VOCAB, ROWS = 11, 4
PARENTS = [-1, 0, 0, -1, 3, 2]


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)
    history = torch.randint(VOCAB, (ROWS, 20), generator=generator)
    known = [6, 9, 6, 8]
    units = torch.randint(VOCAB, (ROWS, len(PARENTS)), generator=generator)
    root = history.gather(1, torch.tensor(known)[:, None] - 1)[:, 0]
    draft = Draft.tree(units, PARENTS).rooted(root, torch.full((ROWS,), 9))
    return (
        draft,
        Prefix(history, known, torch.tensor(known)),
        torch.randn(ROWS, len(PARENTS) + 1, VOCAB, generator=generator),
    )


def path_of(node: int) -> list[int]:
    """Drafted nodes above a node (the root left out), the node included."""
    return [] if node == 0 else [*path_of(PARENTS[node - 1] + 1), node]


@pytest.mark.parametrize("processor", [RepetitionPenaltyLogitsProcessor(1.7), NoRepeatNGramLogitsProcessor(2)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_every_node_sees_its_own_path(case, processor, dynamic):
    draft, prefix, logits = case
    if dynamic:
        units = draft.drafted
        parents = torch.tensor([PARENTS] * ROWS)
        draft = Draft.tree(units, parents).rooted(draft.units[:, 0], torch.full((ROWS,), 9))
    distribution = Warp([processor])(TargetOutput(logits=logits), draft, prefix).distribution
    for row in range(ROWS):
        for node in range(draft.nodes):
            ids = torch.cat([prefix.history[row, : prefix.known[row]], draft.units[row, path_of(node)]])
            expected = processor(ids[None], logits[row, node][None].clone()).softmax(-1)[0]
            assert torch.allclose(distribution.probs[row, node], expected, atol=1e-6)


def test_a_slice_of_the_nodes_sees_the_same(case):
    draft, prefix, logits = case
    warp = Warp([RepetitionPenaltyLogitsProcessor(1.7)])
    whole = warp(TargetOutput(logits=logits), draft, prefix).distribution
    part = warp(TargetOutput(logits=logits[:, 4:]), draft, prefix, slice(4, None)).distribution
    assert torch.equal(part.probs, whole.probs[:, 4:])


def test_elementwise_processors_run_once(case):
    calls = []

    class Halve:
        speculative = "elementwise"

        def __call__(self, ids, scores):
            calls.append(scores.shape)
            return scores / 2

    draft, prefix, logits = case
    distribution = Warp([Halve()])(TargetOutput(logits=logits), draft, prefix).distribution
    assert calls == [(ROWS * draft.nodes, VOCAB)]
    assert torch.allclose(distribution.probs, (logits / 2).softmax(-1))


def test_processors_run_in_order(case):
    """A penalty before top-k changes who is in the top k."""
    draft, prefix, logits = case
    penalty, top = RepetitionPenaltyLogitsProcessor(5.0), TopKLogitsWarper(3)
    there = Warp([penalty, top])(TargetOutput(logits=logits), draft, prefix).distribution.probs
    back = Warp([top, penalty])(TargetOutput(logits=logits), draft, prefix).distribution.probs
    ids = prefix.history[:1, : prefix.known[0]]
    assert torch.allclose(there[0, 0], top(ids, penalty(ids, logits[:1, 0].clone())).softmax(-1)[0])
    assert ((there > 0).sum(-1) == 3).all() and not torch.equal(there > 0, back > 0)


class Stateful:
    """Declares nothing."""

    def __init__(self):
        self.shown = []

    def __call__(self, ids, scores):
        self.shown.append((ids, scores))
        return scores + len(self.shown)


def test_a_processor_that_says_nothing_runs_once_for_all_rows_with_all_ids(case):
    draft, prefix, logits = case
    root = Draft.empty(draft.units[:, 0]).rooted(draft.units[:, 0], torch.full((ROWS,), 9))
    own = Stateful()
    scores = Warp([TopKLogitsWarper(3), own], pad=7)(TargetOutput(logits=logits[:, :1]), root, prefix)
    [(ids, seen)] = own.shown
    for row, known in enumerate(prefix.known):
        assert ids[row].tolist() == [*prefix.history[row, :known].tolist(), *[7] * (9 - known)]
    assert torch.equal(seen, TopKLogitsWarper(3)(ids, logits[:, 0])) and torch.equal(scores.logits[:, 0], seen + 1)


def test_a_processor_that_says_nothing_refuses_a_draft(case):
    draft, prefix, logits = case
    own = Stateful()
    with pytest.raises(ValueError, match="Stateful may keep state between calls: decode without a drafter"):
        Warp([own])(TargetOutput(logits=logits), draft, prefix)
    assert not own.shown


def test_numbers_become_processors(case):
    draft, prefix, logits = case
    distribution = Warp.sampling(temperature=0.5, top_k=4, top_p=0.9)(
        TargetOutput(logits=logits), draft, prefix
    ).distribution
    scaled = logits / 0.5
    kept = scaled >= scaled.topk(4, -1).values[..., -1:]
    probs = torch.where(kept, scaled, -torch.inf).softmax(-1)
    order = probs.sort(-1, descending=True)
    inside = (order.values.cumsum(-1) - order.values) < 0.9
    nucleus = torch.zeros_like(probs).scatter(-1, order.indices, order.values * inside)
    assert torch.allclose(distribution.probs, nucleus / nucleus.sum(-1, keepdim=True), atol=1e-6)
    assert Warp.sampling().key == Warp([]).key


def test_temperature_zero_takes_the_likeliest(case):
    draft, prefix, logits = case
    scores = Warp.sampling(temperature=0)(TargetOutput(logits=logits), draft, prefix)
    assert isinstance(scores.distribution, PointMass) and torch.equal(scores.distribution.points, logits.argmax(-1))
    logits[0, 1], logits[2, 0, 3] = -torch.inf, torch.nan
    finite = Warp.sampling(temperature=0)(TargetOutput(logits=logits), draft, prefix).finite
    assert (~finite).nonzero().tolist() == [[0, 1], [2, 0]]


def test_guidance_moves_away_from_the_unconditional(case):
    draft, prefix, logits = case
    null = torch.randn_like(logits)
    guided = Warp.sampling(guidance=3.0)(TargetOutput(logits=logits, null=null), draft, prefix).distribution
    assert torch.allclose(guided.probs, (3 * logits - 2 * null).softmax(-1), atol=1e-6)
    without = Warp.sampling(guidance=1.0)(TargetOutput(logits=logits, null=null), draft, prefix).distribution
    assert torch.allclose(without.probs, logits.softmax(-1), atol=1e-6)


def test_a_distribution_goes_through_as_it_is(case):
    draft, prefix, logits = case
    distribution = Categorical.of_logits(logits)
    assert (
        Warp.sampling(temperature=0.1)(TargetOutput(distribution=distribution), draft, prefix).distribution
        is distribution
    )


@pytest.mark.parametrize(
    "numbers",
    [
        {"temperature": -0.1}, {"temperature": math.nan}, {"top_k": -1}, {"top_p": 1.5}, {"top_p": -0.1},
        {"top_p": math.nan}, {"min_p": -0.1}, {"min_p": 1.1}, {"guidance": 0.5}, {"guidance": math.nan},
    ],
)  # fmt: skip
def test_numbers_out_of_range(numbers):
    with pytest.raises(ValueError, match=next(iter(numbers))):
        Warp.sampling(**numbers)
