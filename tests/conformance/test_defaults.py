"""Every method of the registry with its own defaults: something that it drafts is accepted within 64 units."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from mmspec.api.build import decoder_for
from mmspec.core.warp import Warp
from mmspec.registry import installed
from tests.support import device_cases, device_latents, random_models

pytestmark = pytest.mark.slow
NEEDED = {
    "model",
    "corpus",
    "head",
    "condition",
    "tokenizer",
    "assistant_tokenizer",
    "memory_budget",
    "student",
    "rates",
}
"""Options without which methods do not run; of the cases' others, the defaults are tried."""
WITHOUT_DRAFTS = {"plain", "denoise-ahead", "speculative-denoising"}
"""Methods without drafts of units: the latter two draft steps of denoising, as their own tests count."""
METHODS = sorted({spec.name for spec in installed().components("method")} - WITHOUT_DRAFTS)


@cache
def cases() -> dict[str, tuple[Any, Warp, int]]:
    """A case of every method on a model that its drafts can follow, how it is drawn, and its units."""
    greedy = Warp.sampling(temperature=0)
    groups: list[tuple[Callable[[], dict[str, Any]], Warp | None, int]] = [
        (device_cases.text, greedy, 64),
        (device_cases.recurrent, greedy, 64),
        (device_cases.images, None, 64),
        (device_latents.continuous, None, 49),  # the tokens of a picture
        (device_latents.codes, None, 64),
        (device_latents.frames, greedy, 0),
    ]
    found: dict[str, tuple[Any, Warp, int]] = {}
    for group, warp, limit in groups:
        for name, case in group().items():
            given = {name: value for name, value in case.options.items() if name in NEEDED and value is not None}
            drawn = warp if warp is not None else case.warp
            found.setdefault(name.split(",")[0], (replace(case, options=given), drawn, limit))
    sure = copy.deepcopy(random_models.small())  # `bild` drafts where its model is sure
    sure.lm_head.weight.data.mul_(8)
    found["bild"][0].options["model"] = sure
    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_default_accepts_something(method: str) -> None:
    case, warp, limit = cases()[method]
    if isinstance(case, device_latents.Frames):
        call = case.begin(lambda model: model, lambda inputs: inputs)
        while not call.finished:
            call.advance()
        report = call.report
    else:
        decoder = decoder_for(case.model, method, options=case.options)
        state = decoder.start(case.prompt, limit, seed=3, warp=warp)
        while not state.finished and not state.report.accepted:
            decoder.advance(state)
        report = state.report
    assert report.accepted > 0 and not report.faults, report
