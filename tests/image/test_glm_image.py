"""GLM-Image: codes of a preview and of a picture on a grid of positions, equal to unmodified transformers' own."""

import pytest
import torch

import mmspec
from mmspec.kits.pictures.grid_spec import GridSpec, Stage
from mmspec_image.targets.glm_image import GlmImageTarget
from tests.support.examples.written import END, glm_prompt, tiny_glm_image

CODES = 3 * 4 + 6 * 8 + 1
METHODS = [
    ("plain", {}),
    ("gs-sjd", {"k": 12}),
    ("gs-sjd", {"k": 12}),
    ("gs-sjd-pac", {"k": 12}),
    ("token-recycling", {}),
    ("prompt-lookup", {}),
    ("draft-model", {}),
]


@pytest.fixture
def model():
    return tiny_glm_image()


def drawn(model, prompt, **settings):
    """Ids, and the state in which the call leaves torch's generator."""
    torch.manual_seed(3)
    how = {"max_new_tokens": CODES, "do_sample": True, "temperature": 0.9, "top_p": 0.75, **settings}
    return model.generate(**prompt, **how), torch.get_rng_state()


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(("method", "options"), METHODS)
def test_codes_and_the_generators_state_equal_stock(model, method, options, rows):
    prompt = glm_prompt(range(rows))
    expected, state = drawn(model, prompt, eos_token_id=None)
    given = {"model": model} if method == "draft-model" else options
    with mmspec.enable(model, method, **given) as spec:
        found, after = drawn(model, prompt, eos_token_id=None)
    assert torch.equal(found, expected)
    assert torch.equal(after, state)
    assert spec.report.rounds < CODES / 4 or method != "draft-model"


def test_the_smallest_picture_has_few_codes(model):
    """Fewer than are looked at, to see where a model puts the next ones."""
    prompt, how = glm_prompt([0, 1], (2, 2), (1, 1)), {"max_new_tokens": 6, "eos_token_id": None}
    expected, state = drawn(model, prompt, **how)
    with mmspec.enable(model, "gs-sjd", k=3):
        found, after = drawn(model, prompt, **how)
    assert torch.equal(found, expected) and torch.equal(after, state)


def test_an_early_end_code_ends_a_row_as_in_stock(model):
    for seed in range(3):
        prompt = glm_prompt([seed])
        expected, _ = drawn(model, prompt, eos_token_id=[END, *range(8)])
        with mmspec.enable(model, "token-recycling"):
            found, _ = drawn(model, prompt, eos_token_id=[END, *range(8)])
        assert torch.equal(found, expected)


def test_another_size_in_the_next_call(model):
    with mmspec.enable(model, "gs-sjd", k=8):
        drawn(model, glm_prompt([0]))
        found, _ = drawn(model, glm_prompt([1], (4, 4), (2, 2)), max_new_tokens=21, eos_token_id=None)
    expected, _ = drawn(model, glm_prompt([1], (4, 4), (2, 2)), max_new_tokens=21, eos_token_id=None)
    assert torch.equal(found, expected)


def test_bad_calls_say_what_is_wrong(model):
    prompt = glm_prompt([0])
    with mmspec.enable(model, "gs-sjd"):
        with pytest.raises(ValueError, match="use max_new_tokens=61"):
            drawn(model, prompt, max_new_tokens=62)
        with pytest.raises(ValueError, match="needs image_grid_thw"):
            drawn(model, {"input_ids": prompt["input_ids"]})
        with pytest.raises(ValueError, match="one size"):
            grids = torch.tensor([[1, 6, 8], [1, 3, 4], [1, 4, 4], [1, 2, 2]])
            drawn(model, {**glm_prompt([0, 1]), "image_grid_thw": grids})
    with pytest.raises(ValueError, match="from a picture is not supported"):
        GlmImageTarget(model).start({**prompt, "pixel_values": torch.zeros(1)}, 5, 1)
    with pytest.raises(TypeError, match="takes a GlmImageForConditionalGeneration"):
        GlmImageTarget(torch.nn.Linear(1, 1))


def test_a_table_that_is_not_stocks_is_refused(model, monkeypatch):
    shifted = GridSpec((Stage(2, 2), Stage(6, 8)), tail=(-1,))
    monkeypatch.setattr(GlmImageTarget, "grid_of", lambda self, inputs: shifted)
    with pytest.raises(ValueError, match="own generate puts the next codes at positions"):
        GlmImageTarget(model).start(glm_prompt([0]), 5, 1)


def test_the_spec_of_a_grid_with_row_ends():
    spec = GridSpec((Stage(1, 2), Stage(2, 3, row_end=9)), tail=(7,))
    assert spec.length == 2 + 2 * 4 + 1
    assert spec.forced.tolist() == [-1, -1, -1, -1, -1, 9, -1, -1, -1, 9, 7]
    assert spec.above.tolist() == [-1, -1, -1, -1, -1, -1, 2, 3, 4, -1, -1]
    assert spec.left.tolist() == [-1, 0, -1, 2, 3, -1, 2, 6, 7, -1, -1]
    assert spec.positions[:, 2:5].tolist() == [[2, 2, 2], [2, 2, 2], [2, 3, 4]]
    with pytest.raises(ValueError, match="has no cell"):
        Stage(0, 3)
