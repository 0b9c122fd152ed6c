"""The model that we ship: `gs-sjd` draws the codes of plain decoding, and they show what was asked for."""

from typing import Any

import pytest
import torch

import mmspec
from mmspec.api.build import decoder_for
from mmspec.core.warp import Warp
from mmspec.kits.pictures.bench import CAPTIONS, SEEN
from mmspec_image.targets.llamagen import LlamaGenTarget
from tests.support.same_units import assert_same_units, lost_by
from tests.support.shipped import assert_its_card_names, assert_shows_what_was_asked_for, assert_small

INITS = ("random", "left", "above")
GUIDED = Warp.sampling(1.0, guidance=2.0)
NAME = "mmspec/emoji"


@pytest.fixture(scope="module")
def pipe() -> Any:
    pipe = mmspec.Pipeline.from_pretrained(NAME)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def plain(pipe: Any) -> Any:
    """The codes of plain decoding: by caption and seed, each row alone or not, since that changes nothing."""
    drawn: dict[int, torch.Tensor] = {}

    def of(places: range) -> list[torch.Tensor]:
        missing = [place for place in places if place not in drawn]
        for first in range(0, len(missing), 8):
            some = missing[first : first + 8]
            drawn.update(zip(some, draw(pipe, some, "plain").units, strict=True))
        return [drawn[place] for place in places]

    return of


def draw(pipe: Any, places: Any, method: str, **how: Any) -> Any:
    """One call: picture `place` has caption and seed of its own."""
    decoder = decoder_for(pipe.transformer, method=method, **how)
    condition = pipe.encode_prompt([CAPTIONS[place % len(CAPTIONS)] for place in places])
    return decoder.generate(condition, pipe.transformer.cells, seed=list(places), warp=GUIDED)


def compare(pipe: Any, plain: Any, batch: int, count: int, method: str = "gs-sjd", **how: Any) -> int:
    """Near-ties of `count` pictures, `batch` at a time; anything else raises."""
    ties = 0
    for first in range(0, count, batch):
        places = range(first, first + batch)
        made = draw(pipe, places, method, **how)
        assert made.report.row_rounds < (pipe.transformer.cells - 1) * batch
        condition = pipe.encode_prompt([CAPTIONS[place % len(CAPTIONS)] for place in places])
        margin = lost_by(LlamaGenTarget(pipe.transformer), condition, pipe.transformer.cells, list(places), GUIDED)
        ties += len(assert_same_units(made.units, plain(places), margin))
    return ties


@pytest.mark.slow  # the codes of two captions are on file: tests/recorded
@pytest.mark.parametrize(("batch", "k"), [pytest.param(1, 16, marks=pytest.mark.slow), (2, 32)])
def test_two_pictures(pipe: Any, plain: Any, batch: int, k: int) -> None:
    compare(pipe, plain, batch, 2, k=k)


@pytest.mark.slow
@pytest.mark.parametrize(("k", "batch"), [(8, 1), (16, 8), (32, 1), (64, 8)])
@pytest.mark.parametrize("init", INITS)
def test_every_initialisation_and_window(pipe: Any, plain: Any, init: str, k: int, batch: int) -> None:
    ties = compare(pipe, plain, batch, 32, k=k, options={"init": init})
    assert ties <= 2, "too many near-ties to call this equality"


@pytest.mark.slow
def test_siblings_at_the_front_save_passes(pipe: Any, plain: Any) -> None:
    """Nothing but passes: the codes are plain decoding's."""
    assert compare(pipe, plain, 8, 8, "gs-sjd-pac", k=32) <= 1
    rounds = {name: draw(pipe, range(8), name, k=32).report.row_rounds for name in ("gs-sjd", "gs-sjd-pac")}
    print(rounds)
    assert rounds["gs-sjd-pac"] < 0.93 * rounds["gs-sjd"]


@pytest.mark.slow  # the codes of two captions are those on file: tests/recorded
def test_what_is_drawn_is_what_was_asked_for(pipe: Any) -> None:
    assert_shows_what_was_asked_for(pipe, "emoji", list(SEEN[:8]), 2.0)


def test_it_is_small_and_its_card_says_how_it_is_used(pipe: Any) -> None:
    assert_its_card_names(pipe, NAME, "gs-sjd", "invariant")
    assert_small("emoji", 16_000_000)


@pytest.mark.parametrize("form", [{"form": "chain"}, {"width": 3, "nodes": 7}])
def test_the_shipped_head_drafts_for_it(pipe: Any, plain: Any, form: dict[str, Any]) -> None:
    """Plain decoding's codes, and drafts of use."""
    ours = draw(pipe, [0, 1], "eagle", drafter="mmspec/emoji-eagle", k=3, options=form)
    condition = pipe.encode_prompt(CAPTIONS[:2])
    margin = lost_by(LlamaGenTarget(pipe.transformer), condition, pipe.transformer.cells, [0, 1], GUIDED)
    assert_same_units(ours.units, plain(range(2)), margin)
    assert ours.report.acceptance_length > 1.5, "the shipped head is of no use"
