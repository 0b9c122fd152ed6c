"""Where components are tried: distributions are known of targets without units in their prompts, and drafters really
draft.
"""

import itertools
from typing import Any

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match
from mmspec.registry import DrafterSpec
from mmspec.testing import Example
from mmspec.testing.conformance.benches import bench_of, grid
from mmspec.testing.conformance.check import claimed
from mmspec.testing.conformance.promise import Broken
from mmspec.testing.conformance.rule_trials import decode
from mmspec.testing.conformance.subject import Trial
from mmspec.testing.toys.grid import GridTarget
from mmspec.testing.toys.markov_drafters import MarkovChain
from tests.support.cases import GUIDANCE, VOCAB, grid_case


def codes(**more: Any) -> Example:
    return Example(**{"target": grid().target, "prompt": grid().prompt, "guidance": GUIDANCE, **more})


def test_the_distribution_of_given_codes_is_known_without_a_prompt_of_codes() -> None:
    made, known = bench_of("codes", codes()), grid_case().next_distribution
    assert made.next_distribution is not None
    for length in (0, 1, 3):
        for units in itertools.product(range(VOCAB), repeat=length):
            torch.testing.assert_close(made.next_distribution(units), known(units))
    plain = bench_of("codes", codes(guidance=None)).next_distribution
    assert plain is not None and (plain((1,)) - known((1,))).abs().max() > 0.05


def test_units_that_a_target_forces_are_part_of_the_distribution() -> None:
    target = GridTarget.random(2, VOCAB, seed=3)
    target.forced = torch.tensor([-1, 2, -1])
    distribution = bench_of("codes", codes(target=target)).next_distribution
    assert distribution is not None
    assert distribution((0,)).tolist() == [0, 0, 1] and distribution(()).max() < 1


@pytest.mark.parametrize("shape", ["chain", "tree without"])
def test_drafters_from_a_table_need_no_prompt(shape: str) -> None:
    made = bench_of("codes", codes())
    decoder = Decoder(made.target, made.drafters[shape](), Match(), k=3)
    report = decoder.generate(made.prompt(range(50)), 12, warp=made.warp).report
    assert report.faults == 0 and report.drafted > report.row_rounds and report.acceptance_length > 1.1


class Fails(MarkovChain):
    def propose(self, *given: Any) -> Any:
        raise RuntimeError("no idea")


@pytest.mark.filterwarnings("ignore:drafter Fails failed")
def test_a_drafter_that_fails_tries_nothing() -> None:
    trial = Trial(None, grid(), lambda: Fails(torch.zeros(VOCAB, VOCAB, VOCAB)), "failing", rows=1)
    with pytest.raises(Broken, match="with the drafter failing on grid, which fails: nothing is tried"):
        decode(trial, Match())


def promised(needs: str) -> set[str]:
    offers = frozenset({"chain", "q"})
    made = DrafterSpec(name="mine", factory="x:Y", needs=frozenset({needs}), offers=offers, summary="Mine.")
    return {promise.name for promise in claimed(made)}


def test_a_window_that_lives_on_does_not_promise_fresh_rounds() -> None:
    assert promised("discrete") - promised("redraw") == {"rounds-draw-fresh-noise"}
    assert promised("redraw") < promised("discrete")
