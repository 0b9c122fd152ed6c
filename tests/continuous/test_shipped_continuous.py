"""The model that we ship: fewer passes, the same distribution, and pictures that show what was asked for."""

from typing import Any

import pytest
import torch

import mmspec
from mmspec_continuous.commands import CAPTIONS, GUIDANCE
from tests.support.shipped import assert_its_card_names, assert_shows_what_was_asked_for, assert_small

NAME = "mmspec/emoji-continuous"
DRAWN = (
    "police officer skin 4",
    "couple with heart skin 1 2",
    "construction worker skin 4",
    "princess skin 4",
    "guardsman skin 5",
    "mountain bicyclist skin 4",
    "raised hand skin 3",
    "smiling face with sunglasses",
)
"""Captions of pictures that the model learned well: a small model draws not all that it was trained on."""


@pytest.fixture(scope="module")
def pipe() -> Any:
    pipe = mmspec.Pipeline.from_pretrained(NAME)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_fewer_passes(pipe: Any) -> None:
    report = pipe(list(CAPTIONS[:2]), guidance_scale=GUIDANCE, seed=0, output_type="latent").report
    assert report.method == "reflection" and report.exactness == "lossless"
    assert report.acceptance_length > 2


@pytest.mark.slow  # on tiny models in tests/continuous and tests/toys; tests/recorded has this model's outputs
def test_tokens_have_the_distribution_of_plain_decoding(pipe: Any) -> None:
    """Random directions through whole pictures, and products of neighbours: 64 pictures of each method.

    Of 96 statistics none is further off than chance puts the furthest of them: the bound is exceeded once in 1,000.
    """
    captions = [CAPTIONS[0]] * 32
    drawn = {}
    for method, seeds in (("plain", (1, 2)), ("reflection", (3, 4))):
        own = type(pipe)(**pipe.components).use(method)
        own.set_progress_bar_config(disable=True)
        calls = [own(captions, guidance_scale=GUIDANCE, seed=s, output_type="latent") for s in seeds]
        drawn[method] = torch.cat([call.tokens for call in calls]).flatten(1).double()
    g = torch.Generator().manual_seed(0)
    along = torch.randn(drawn["plain"].shape[1], 48, generator=g, dtype=torch.float64) / 20
    dim = pipe.transformer.config.token_dim
    cells = torch.randperm(drawn["plain"].shape[1] - dim, generator=g)[:48]
    statistics = {method: torch.cat([x @ along, x[:, cells] * x[:, cells + dim]], 1) for method, x in drawn.items()}
    plain, ours = statistics["plain"], statistics["reflection"]
    error = ((plain.var(0) + ours.var(0)) / len(plain)).sqrt()
    assert ((plain.mean(0) - ours.mean(0)) / error).abs().max() < 4.6


def test_it_is_small_draws_what_was_asked_for_and_its_card_says_how(pipe: Any) -> None:
    assert_shows_what_was_asked_for(pipe, "emoji-continuous", list(DRAWN), GUIDANCE)
    assert_its_card_names(pipe, NAME, "reflection", "lossless")
    assert_small("emoji-continuous", 14_000_000)
