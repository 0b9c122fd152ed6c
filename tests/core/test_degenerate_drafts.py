"""Drafted units whose distribution is invalid (NaN, no mass) or has no choice: refused where the draft is rooted, and
every rule keeps the target's distribution."""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical, Gaussian, GaussianMixture, Mixed
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.initialisations import RandomUnit
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection
from mmspec.core.types import Draft
from mmspec.testing.oracles import exact_joint
from mmspec.testing.toys.degenerate import KINDS, DegenerateDrafts
from mmspec.testing.toys.markov import MarkovTarget
from mmspec.testing.toys.markov_drafters import MarkovChain, MarkovTree
from tests.support.laws import assert_follows

LENGTH, VOCAB = 5, 3
TEXT = MarkovTarget.random(VOCAB, seed=4)
WORSE = (TEXT.table + MarkovTarget.random(VOCAB, seed=14).table) / 2


def joint(table: torch.Tensor) -> torch.Tensor:
    """Of what follows (0, 1)."""
    return exact_joint(lambda units: table[(0, 1, *units)[-2:]].float().softmax(-1), LENGTH, VOCAB)


def follows(target, drafter, rule) -> float:
    def sample(seed: int, rows: int) -> torch.Tensor:
        state = decoder.start(torch.tensor([[0, 1]]).expand(rows, 2), LENGTH, seed=seed)
        while not state.finished:
            decoder.advance(state)
        assert not state.report.faults
        return state.history[:, 2 : 2 + LENGTH]

    decoder = Decoder(target, drafter, rule, k=3)
    return assert_follows(sample, joint(target.table))


def speechless(dtype: torch.dtype = torch.float32) -> MarkovTarget:
    """A small vocabulary, 0 and 1, whose units are all forbidden after a 1: nothing is left to draw from."""
    table = WORSE.clone()
    table[..., 2] = -torch.inf
    table[:, 1] = -torch.inf
    return MarkovTarget(table.to(dtype))


def test_a_draft_model_with_nothing_left_to_say_does_no_harm_under_block() -> None:
    assert follows(TEXT, DraftModel(speechless()), Block()) > 1e-4


DRAFTERS = {
    "chain": lambda table: MarkovChain(table),
    "sparse chain": lambda table: MarkovChain(table, top=2),
    "chain of a model": lambda table: DraftModel(MarkovTarget(table)),
    "tree with replacement": lambda table: MarkovTree(table, siblings="with"),
    "tree without replacement": lambda table: MarkovTree(table, siblings="without"),
    "window": lambda table: Jacobi(RandomUnit(VOCAB)),
}
TAKES = {"tree": (Match, RecursiveRejection), "window": (Match, Rejection)}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        (name, rule)
        for name in DRAFTERS
        for rule in TAKES.get(name.split()[0], (Match, Rejection, RecursiveRejection, Block))
    ],
)
def test_every_rule_keeps_the_distribution_with_every_draft(name: str, rule: type, dtype: torch.dtype) -> None:
    target, table = MarkovTarget(TEXT.table.to(dtype)), WORSE.to(dtype)
    assert follows(target, DegenerateDrafts(DRAFTERS[name](table)), rule()) > 1e-4
    if name == "chain of a model":
        assert follows(target, DraftModel(speechless(dtype)), rule()) > 1e-4


def test_what_has_no_distribution_is_refused_with_all_that_hangs_on_it() -> None:
    root, room = torch.zeros(1, dtype=torch.int64), torch.tensor([9])
    probs = torch.full((1, 6, 2), 0.5)
    probs[0, 1], probs[0, 3], probs[0, 4], probs[0, 5, 1] = torch.nan, 0.0, torch.tensor([0.0, 1.0]), torch.nan
    units = torch.ones(1, 6, dtype=torch.int64)
    tree = Draft.tree(units, (-1, 0, 1, -1, -1, -1), Categorical(probs)).rooted(root, room)
    assert tree.valid.tolist() == [[True, True, False, False, False, True, False]]
    windowed = Mixed(Categorical(probs), torch.tensor([[True, False, False, False, True, True]]), units)
    assert Draft.chain(units, windowed).rooted(root, room).valid.tolist() == [[True] * 6 + [False]]
    assert Draft.chain(units).rooted(root, room).valid.all()


def test_continuous_units_without_a_distribution_are_refused() -> None:
    root, room, units = torch.zeros(1, 2), torch.tensor([9]), torch.zeros(1, 2, 2)
    mean = torch.tensor([[[0.0, 0.0], [0.0, torch.inf]]])
    assert Draft.chain(units, Gaussian(mean, 1.0)).rooted(root, room).valid.tolist() == [[True, True, False]]
    weights = torch.tensor([[[0.5, 0.5], [0.0, 0.0]]])
    mixture = GaussianMixture(weights, torch.zeros(1, 2, 2, 2), torch.ones(1, 2, 2))
    assert Draft.chain(units, mixture).rooted(root, room).valid.tolist() == [[True, True, False]]


def test_latents_that_are_not_finite_never_reach_the_target() -> None:
    root, units = torch.ones(1, 2), torch.tensor([[[0.0, 0.0], [torch.nan, 0.0], [2.0, 2.0]]])
    draft = Draft.chain(units).rooted(root, torch.tensor([9]))
    assert draft.valid.tolist() == [[True, True, False, False]]
    assert draft.units[0, 2].tolist() == [1, 1] and draft.units[0, 3].tolist() == [2, 2]


def test_the_toy_spoils_what_it_says() -> None:
    made = {}
    for kind in KINDS:
        decoder = Decoder(TEXT, DegenerateDrafts(MarkovChain(WORSE), (kind,), 1.0), Rejection(), k=3)
        state = decoder.start(torch.tensor([[0, 1]]).expand(40, 2), 9)
        made[kind] = decoder.speculate(state).draft
    assert not made["broken"].valid[:, 1:].any() and made["broken"].distribution.probs.isnan().all()
    assert not made["empty"].valid[:, 1:].any() and not made["empty"].distribution.probs.any()
    sure = made["one unit"]
    assert sure.valid.all() and (sure.distribution.of(sure.drafted) == 1).all() and len(sure.drafted.unique()) == VOCAB
