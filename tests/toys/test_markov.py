"""Toy text: every lossless rule keeps the distribution, over chains, trees, sparse distributions, mixed distributions
and policies.
"""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Mixed
from mmspec.core.policies import Confidence
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.testing.oracles import exact_joint
from mmspec.testing.toys.markov_drafters import MarkovChain, MarkovTree
from tests.support.cases import VOCAB, markov_case
from tests.support.laws import assert_follows

LENGTH = 4
CASE = markov_case()
JOINT = exact_joint(CASE.next_distribution, LENGTH, VOCAB)
NEAR = CASE.drafters["chain"]().table
BAD = CASE.drafters["chain bad"]().table
SHOWN = pytest.mark.slow
"""Such pairs also decode 200,000 rows on the core as it is in tests/mutants, beside the bugs that break them."""


def follows(drafter, rule, joint=JOINT, warp=None, policy=None):
    """The run keeps the distribution. Returns its report."""
    decoder = Decoder(CASE.target, drafter, rule, k=3, policy=policy)
    reports = []

    def sample(seed, rows):
        output = decoder.generate(CASE.prompt(rows), LENGTH, seed=seed, warp=warp)
        reports.append(output.report)
        return torch.stack(output.units)

    p = assert_follows(sample, joint)
    print(f"p = {p:.4f}, acceptance length {reports[-1].acceptance_length:.2f}")
    return reports[-1]


def test_plain_decoding_follows_the_joint():
    """So does all output of `match`, which equals it (test_every_pair)."""
    assert follows(None, Match()).acceptance_length == 1


def test_bad_chain():
    """Under `block` the bad chain is in test_grid."""
    assert 1 < follows(MarkovChain(BAD), Rejection()).acceptance_length < 1.5


@pytest.mark.parametrize(
    ("siblings", "table", "least"),
    [
        pytest.param("with", NEAR, 1.6, marks=SHOWN),
        ("without", NEAR, 2),
        ("top", NEAR, 1.4),
        pytest.param("without", BAD, 1.2, marks=SHOWN),
    ],
)
def test_tree(siblings, table, least):
    assert follows(MarkovTree(table, siblings=siblings), RecursiveRejection()).acceptance_length > least


@pytest.mark.parametrize(
    "rule", [pytest.param(Rejection, marks=SHOWN), Block, pytest.param(RecursiveRejection, marks=SHOWN)]
)
def test_top_k_on_both_sides_with_other_supports(rule):
    """Target and drafter keep two units of three each, and not the same two."""

    def next_distribution(units):
        distribution = CASE.next_distribution(units)
        distribution = torch.where(distribution >= distribution.topk(2).values[-1], distribution, 0.0)
        return distribution / distribution.sum()

    joint = exact_joint(next_distribution, LENGTH, VOCAB)
    assert (joint > 0).sum() == 2**LENGTH
    report = follows(MarkovChain(NEAR, top=2), rule(), joint, Warp.sampling(top_k=2))
    assert report.acceptance_length > 1.3


class Patchy:
    """A chain of which every other unit is a copy (a point mass): what a Jacobi window with fresh slots looks like."""

    offers = frozenset({"chain", "q"})
    needs = frozenset()

    def __init__(self):
        self.chain = MarkovChain(NEAR)

    def bind(self, target):
        pass

    def width(self, k):
        return k

    def start(self, state, inputs):
        return None

    def propose(self, state, k, noise):
        draft = self.chain.propose(state, k, noise)
        random = ((torch.arange(k) + state.emitted[:, None]) % 2 == 0).expand(state.rows, -1)
        units = torch.where(random, draft.units, state.root[:, None])
        # The distributions below a copy were drawn for another prefix; they are still what the units came from.
        return Draft.chain(units, Mixed(draft.distribution, random, units))

    def observe(self, state, step):
        pass


@pytest.mark.parametrize("rule", [pytest.param(Rejection, marks=SHOWN), Block])
def test_chains_that_mix_samples_and_point_masses(rule):
    assert follows(Patchy(), rule()).acceptance_length > 1.2


@pytest.mark.parametrize(
    ("drafter", "rule"),
    [
        pytest.param(MarkovChain(NEAR), Rejection(), marks=SHOWN),
        (MarkovTree(NEAR), RecursiveRejection()),
    ],
)
def test_confidence_decides_before_the_draw(drafter, rule):
    """A budget that depends on the distributions and not on the units keeps the distribution."""
    report = follows(drafter, rule, policy=Confidence(3, 0.3))
    drafted = Decoder(CASE.target, drafter, rule, k=3).generate(CASE.prompt(2000), LENGTH).report.drafted / 2000
    assert 0.1 < report.drafted / report.rows < 0.9 * drafted, "the policy must cut some, not all"
