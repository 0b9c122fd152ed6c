"""Emu3: pictures with row ends, under a constraint and guidance, equal to unmodified transformers' own."""

import warnings

import pytest
import torch

import mmspec
from mmspec.kits.pictures.grid_spec import GridSpec, Stage
from mmspec_image.constraint import GridConstraint, emu3_grid
from mmspec_image.grid_example import BEGIN, END_OF_IMAGE, IMAGE, IMAGE_END, ROW_END, VISUAL, tiny_emu3

HEIGHT, WIDTH = 4, 5
METHODS = [
    ("plain", {}),
    ("gs-sjd", {"k": 8}),
    ("gs-sjd", {"k": 8, "init": "predict-2d"}),
    ("gs-sjd-pac", {"k": 8}),
    ("token-recycling", {}),
    ("prompt-lookup", {}),
    ("draft-model", {}),
]


@pytest.fixture
def model():
    return tiny_emu3()


def prompts(rows):
    """Prompts of two lengths that ask for a picture."""
    ids = torch.randint(3, 140, (rows, 9), generator=torch.Generator().manual_seed(rows))
    ids[:, -1] = IMAGE
    mask = torch.ones_like(ids)
    mask[1:2, :3] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def drawn(model, rows, guided):
    """Ids, and the state in which the call leaves torch's generator."""
    given = prompts(rows)
    grid = emu3_grid(model, given["input_ids"], HEIGHT, WIDTH)
    if guided:
        given |= {"guidance_scale": 3.0, "negative_prompt_ids": given["input_ids"][:, 4:]}
    torch.manual_seed(3)
    how = {"max_new_tokens": grid.length, "do_sample": True, "top_k": 12}
    return model.generate(**given, **how, prefix_allowed_tokens_fn=grid), torch.get_rng_state()


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(("method", "options"), METHODS)
def test_ids_and_the_generators_state_equal_stock(model, method, options, rows, guided):
    expected, state = drawn(model, rows, guided)
    given = {"model": model} if method == "draft-model" else options
    with mmspec.enable(model, method, **given) as spec, warnings.catch_warnings():
        warnings.simplefilter("error")
        found, after = drawn(model, rows, guided)
    assert torch.equal(found, expected)
    assert torch.equal(after, state)
    picture = found[:, 9:].tolist()
    for row in picture:
        assert row[-3:] == [IMAGE_END, END_OF_IMAGE, 2]
        assert all(row[line * (WIDTH + 1) + WIDTH] == ROW_END for line in range(HEIGHT))
        assert sum(VISUAL <= code < VISUAL + 16 for code in row) == HEIGHT * WIDTH
    free = HEIGHT * WIDTH
    assert spec.report.rounds <= (free if method in ("gs-sjd", "prompt-lookup", "draft-model") else 26)


def test_a_text_is_the_text_targets_business(model):
    torch.manual_seed(3)
    expected = model.generate(**prompts(1), max_new_tokens=12, do_sample=True)
    with mmspec.enable(model, "gs-sjd"):
        torch.manual_seed(3)
        assert torch.equal(model.generate(**prompts(1), max_new_tokens=12, do_sample=True), expected)


def test_prompts_that_ask_for_no_such_picture(model):
    class Tokenizer:
        def decode(self, ids):
            return "90*90"

    ids = prompts(1)["input_ids"].clone()
    ids[0, -2] = BEGIN
    with pytest.raises(ValueError, match="the grid has 4\\*5"):
        emu3_grid(model, ids, HEIGHT, WIDTH, Tokenizer())
    with pytest.raises(ValueError, match="must end with"):
        emu3_grid(model, ids[:, :-1], HEIGHT, WIDTH)
    with pytest.raises(ValueError, match="has no cell"):
        emu3_grid(model, ids, 0, WIDTH)
    with pytest.raises(ValueError, match="needs codes"):
        GridConstraint(GridSpec((Stage(1, 1),)), (), 3)
