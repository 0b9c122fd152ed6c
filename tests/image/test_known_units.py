"""A constraint whose known units are data, beside processors that forbid ids: as in unmodified `generate`."""

from typing import Any

import pytest
import torch

import mmspec
from mmspec.kits.pictures.grid_spec import GridSpec, Stage
from mmspec_image.constraint import GridConstraint, emu3_grid
from tests.support.examples.written import IMAGE_END, ROW_END, VISUAL, emu3_prompt, tiny_emu3

METHODS = ["gs-sjd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("plain", "prompt-lookup"))]
QUICK = ("no code left", "another end")
BESIDE: dict[str, dict[str, Any]] = {
    "a row end that is forbidden, too": {"bad_words_ids": [[ROW_END]]},
    "no code left": {"no_repeat_ngram_size": 1},
    "no code left for the first cell": {"bad_words_ids": [[VISUAL + code] for code in range(16)]},
    "another end": {"forced_eos_token_id": 7},
    "codes that are forbidden": {"suppress_tokens": [VISUAL, VISUAL + 3], "top_k": 5, "temperature": 0.7},
}


def drawn(given: dict[str, Any], grid: GridConstraint, **beside: Any) -> tuple[Any, Any]:
    """Ids, and the state in which the call leaves torch's generator."""
    torch.manual_seed(3)
    how = {"max_new_tokens": grid.length, "do_sample": True, "prefix_allowed_tokens_fn": grid}
    return tiny_emu3().generate(**given, **how, **beside), torch.get_rng_state()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "beside", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in BESIDE]
)
def test_processors_beside_the_grid(beside: str, method: str) -> None:
    given = emu3_prompt([0, 1])
    grid = emu3_grid(tiny_emu3(), given["input_ids"], 4, 5)
    expected, state = drawn(given, grid, **BESIDE[beside])
    with mmspec.enable(tiny_emu3(), method):
        found, after = drawn(given, grid, **BESIDE[beside])
    assert torch.equal(found, expected) and torch.equal(after, state)


@pytest.mark.parametrize("method", METHODS)
def test_a_known_unit_that_is_forbidden_is_not_drawn(method: str) -> None:
    given = emu3_prompt([0])
    grid = emu3_grid(tiny_emu3(), given["input_ids"], 4, 5)
    with pytest.raises(RuntimeError, match="probability tensor"):
        drawn(given, grid, suppress_tokens=[ROW_END])
    with mmspec.enable(tiny_emu3(), method), pytest.raises(ValueError, match="unit 5 are NaN or all -inf"):
        drawn(given, grid, suppress_tokens=[ROW_END])


def test_a_known_unit_that_is_no_id() -> None:
    given = emu3_prompt([0])
    grid = GridConstraint(GridSpec((Stage(4, 5, 200),)), [VISUAL, VISUAL + 1], given["input_ids"].shape[1])
    with pytest.raises(IndexError, match="index 200 is out of bounds"):
        drawn(given, grid)
    with mmspec.enable(tiny_emu3(), "gs-sjd"), pytest.raises(IndexError, match="index 200 is out of bounds"):
        drawn(given, grid)


def test_a_code_that_ends_rows() -> None:
    spec = GridSpec((Stage(2, 2, ROW_END),), (IMAGE_END, -1))
    for both in (ROW_END, IMAGE_END):
        with pytest.raises(ValueError, match=f"the id {both} ends rows or pictures of this grid"):
            GridConstraint(spec, [VISUAL, both], 3)
