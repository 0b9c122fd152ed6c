"""The method `causal-sets`: a fixed number of passes, another distribution, exact where tokens do not see one
another.
"""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Mixed
from mmspec.core.drafters.initialisations import LeftDistribution
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.rules import Rejection
from mmspec.testing.conformance.rules import WatchedRule
from mmspec.testing.conformance.watch import Log
from mmspec.testing.toys.gaussian import GaussianTarget
from mmspec_continuous.drafters.jacobi import ContinuousSets, SetsOptions
from mmspec_continuous.pipeline import ContinuousTextToImagePipeline
from mmspec_continuous.rules.causal_sets import CausalSets
from mmspec_continuous.targets.continuous import ContinuousTarget
from tests.support.examples.continuous import captions, tiny
from tests.support.white import white_p_value, whitened

LEVEL, ROWS, LENGTH = 1e-4, 4_000, 7


def toy(gain):
    return GaussianTarget.random(3, 1, seed=0, gain=gain)


def white(target, drafter, rule, k):
    output = Decoder(target, drafter, rule, k=k).generate(ROWS, LENGTH, seed=1)
    return white_p_value(whitened(torch.stack(output.units).flatten(1), *target.joint(LENGTH))), output.report


def test_it_is_another_sampler():
    assert white(toy(0.6), ContinuousSets(), CausalSets(), 4)[0] < 1e-6
    p, report = white(toy(0.0), ContinuousSets(), CausalSets(), 4)
    assert p > LEVEL, "tokens that do not depend on one another lose nothing"
    assert report.exactness == "lossy" and report.bias is None and report.rounds < LENGTH - 1


def test_sets_are_no_drafts_for_an_exact_rule():
    p, report = white(toy(0.6), ContinuousSets(), Rejection(), 4)
    assert p > LEVEL and report.acceptance_length < 1.5


@pytest.mark.thinned(1)
@pytest.mark.parametrize("head", ["diffusion", "gaussian-mixture"])
@pytest.mark.parametrize("k", [1, 5, 8])
def test_a_pass_emits_a_set_and_one_more(head, k):
    """The number of passes does not depend on acceptance: the first has no set yet, the last one the remainder."""
    target = ContinuousTarget(tiny(head=head, components=3, least=0.3))
    decoder, cells = Decoder(target, ContinuousSets(), CausalSets(), k=k), 25
    output = decoder.generate(captions([1, 2]), cells, seed=[3, 4])
    assert output.report.rounds == 1 + -(-(cells - 2) // (k // 2 + 1))
    alone = decoder.generate(captions([2]), cells, seed=[4]).units[0]
    torch.testing.assert_close(alone, output.units[1], rtol=1e-3, atol=1e-3)


def test_what_stands_was_drawn_in_the_last_pass():
    decoder = Decoder(toy(0.6), ContinuousSets(), CausalSets(), k=6)
    state = decoder.start(4, 30, seed=1)
    before = None
    for _ in range(5):
        pending = decoder.speculate(state)
        draft = pending.draft
        assert isinstance(draft.distribution, Mixed)
        decided = ~draft.distribution.random
        if before is not None:
            count, drawn = before
            assert int(decided.sum(1).min()) == 3
            assert torch.equal(draft.drafted[:, :3], drawn[:, count : count + 3])
        step = decoder.settle(state, pending)
        state.sync()
        assert torch.equal(step.verdict.length, decided.sum(1)) and torch.equal(step.count, step.verdict.length + 1)
        before = int(step.count[0]), step.verdict.drawn


def test_verdicts_are_paths_and_nothing_is_changed():
    seen = Log()
    decoder = Decoder(toy(0.6), ContinuousSets(), WatchedRule(CausalSets(), seen), k=5)
    made = [decoder.generate(20, 17, seed=2).units for _ in range(2)]
    assert not any(seen.wrong.values()) and seen.count["verdicts"] > 100
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))


def test_drafters_without_sets_are_refused():
    with pytest.raises(ValueError, match="nothing offers sets"):
        Decoder(toy(0.6), Jacobi(LeftDistribution()), CausalSets())


def test_by_name(pipe):
    made = ContinuousTextToImagePipeline(**pipe.components).use("causal-sets", k=6)
    made.set_progress_bar_config(disable=True)
    report = made("red heart", seed=1).report
    assert report.method == "causal-sets" and report.exactness == "lossy" and report.rounds == 5
    assert "lossy" in str(report) and "altered" not in str(report)


def test_sets_are_drafted_from_above():
    decoder = Decoder(ContinuousTarget(tiny()), ContinuousSets(SetsOptions(init="above")), CausalSets(), k=6)
    other = Decoder(decoder.target, ContinuousSets(), CausalSets(), k=6)
    above, left = (d.generate(captions([1]), 49, seed=1) for d in (decoder, other))
    assert above.report.rounds == left.report.rounds and not torch.equal(above.units[0], left.units[0])
