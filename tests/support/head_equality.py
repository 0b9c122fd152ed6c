"""Assertions that a model with a trained head writes what it writes without one."""

from collections.abc import Callable
from typing import Any

import torch

import mmspec
from mmspec.compare.equality import assert_same, stock

SAMPLED = {"do_sample": True, "top_k": 0, "temperature": 0.8}


def assert_equal_call(model: Any, inputs: Any, call: dict[str, Any], how: dict[str, Any]) -> None:
    """One call by transformers, and again under `enable` with the arguments `how`: ids and generator are the same."""
    call = {**call, "max_new_tokens": 16}
    run = stock(model, inputs, 0, **call)
    with mmspec.enable(model, k=3, **how) as enabled:
        torch.manual_seed(0)
        ids = model.generate(**inputs, **call)
        assert enabled.report is not None and enabled.report.drafted > 0
    assert_same(ids, run, torch.get_rng_state())


def assert_equal_to_transformers(
    model: Any, prompts: Callable, named: dict[str, Any], live: dict[str, Any] | None = None
) -> None:
    """A ragged batch, greedy, with the head by name; one row, sampled, with a live drafter if there is one."""
    assert_equal_call(model, prompts(3), {"do_sample": False}, named)
    assert_equal_call(model, prompts(1), SAMPLED, live or named)
