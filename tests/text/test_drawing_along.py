"""Others that draw from torch's generator during a call: criteria and streamers in turns with it, drafters in vain."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import StoppingCriteria

import mmspec
from mmspec.compare.equality import assert_same

SAMPLED = dict(do_sample=True, top_k=0, max_new_tokens=24)


class Coin(StoppingCriteria):
    """Ends every row by chance, from a step on."""

    def __init__(self, first: int = 0) -> None:
        self.first, self.steps = first, 0

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self.steps += 1
        if self.steps <= self.first:
            return torch.zeros(len(input_ids), dtype=torch.bool)
        return torch.rand(len(input_ids)) < 0.04


class Sparkling:
    """A streamer that draws a colour for every token."""

    def __init__(self) -> None:
        self.began = False

    def put(self, value: Tensor) -> None:
        if self.began:
            torch.rand(len(value.flatten()))
        self.began = True

    def end(self) -> None:
        pass


class Guess:
    """Drafts at random."""

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        return [torch.randint(3, 131, (k,)).tolist() for _ in tokens]


@pytest.mark.parametrize("method", ["plain", "prompt-lookup", "token-recycling"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_criterion_that_draws_is_drawn_in_turns_with(target: Any, prompts: Callable, method: str, seed: int) -> None:
    """Output and generator are the unmodified model's, and rows end where they end there; a warning says the price."""

    def write() -> Tensor:
        torch.manual_seed(seed)
        ids: Tensor = target.generate(**prompts(3), **SAMPLED, stopping_criteria=[Coin()])
        return ids

    stock, after = write(), torch.get_rng_state()
    with mmspec.enable(target, method) as spec, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(write(), stock) and torch.equal(torch.get_rng_state(), after)
    told = [w for w in caught if "goes on without drafts" in str(w.message)]
    assert spec.report is not None and not spec.report.drafted
    assert len(told) == (method != "plain")


def test_a_streamer_that_draws_for_every_token(target: Any, prompts: Callable) -> None:
    def write() -> Tensor:
        torch.manual_seed(2)
        ids: Tensor = target.generate(**prompts(1), **SAMPLED, streamer=Sparkling())
        return ids

    stock, after = write(), torch.get_rng_state()
    with mmspec.enable(target, "prompt-lookup"), pytest.warns(UserWarning, match="criterion or the streamer draws"):
        assert torch.equal(write(), stock) and torch.equal(torch.get_rng_state(), after)


def test_one_that_begins_late_ends_the_drafts_then(target: Any, prompts: Callable) -> None:
    with mmspec.enable(target, "token-recycling") as spec, pytest.warns(UserWarning, match="goes on without drafts"):
        target.generate(**prompts(3), **SAMPLED, stopping_criteria=[Coin(first=6)])
    assert spec.report is not None and spec.report.drafted and spec.report.sizes[1]


@pytest.mark.parametrize("sample", [True, False])
def test_a_drafter_that_draws_moves_nothing(
    target: Any, prompts: Callable, theirs: Callable, ours: Callable, sample: bool
) -> None:
    call = {**SAMPLED, "do_sample": sample}
    for seed in range(2):
        mine = ours(target, prompts(3), seed, {"drafter": Guess()}, **call)
        assert_same(mine.ids, theirs(target, prompts(3), seed, **call), mine.state)
        assert mine.report.drafted and not mine.report.faults
