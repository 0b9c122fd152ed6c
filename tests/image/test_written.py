"""Pictures that language models write: Emu3, Chameleon, Lumina-mGPT, equal to unmodified transformers' own."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from transformers import ChameleonForConditionalGeneration

import mmspec
from mmspec.kits.pictures.grid_spec import GridSpec, Stage
from mmspec.registry import installed
from mmspec_image.constraint import GridConstraint, chameleon_grid, emu3_grid
from tests.support.examples.written import (
    BEGIN,
    BREAK,
    END_OF_IMAGE,
    EOSS,
    FIRST_CODE,
    FIRST_SIZE,
    IMAGE,
    IMAGE_END,
    LUMINA_END,
    ROW_END,
    VISUAL,
    tiny_chameleon,
    tiny_emu3,
)

PROMPT, CODES = 9, 16


class Writes(NamedTuple):
    """The form in which a model writes pictures."""

    model: Callable[[], Any]  # makes the tiny model
    grid: Callable[..., GridConstraint]  # makes the constraint of a call
    header: list[int]  # the ids with which a prompt ends
    words: int  # one more than the largest id of a word
    size: tuple[int, int]  # rows and columns of codes
    first: int  # the first of its codes
    row_end: int | None  # the id behind a row; None: there is none
    tail: list[int]  # the ids behind the picture


WRITERS = {
    "emu3": Writes(tiny_emu3, emu3_grid, [IMAGE], 140, (4, 5), VISUAL, ROW_END, [IMAGE_END, END_OF_IMAGE, 2]),
    "chameleon": Writes(tiny_chameleon, chameleon_grid, [BREAK], 19, (4, 5), FIRST_CODE, None, [EOSS]),
    "lumina": Writes(
        tiny_chameleon,
        chameleon_grid,
        [BREAK, FIRST_SIZE + 1, FIRST_SIZE + 2],
        19,
        (4, 6),
        FIRST_CODE,
        LUMINA_END,
        [EOSS],
    ),
}
METHODS = [
    ("plain", {}),
    ("gs-sjd", {"k": 8}),
    ("gs-sjd", {"k": 8, "init": "left"}),
    ("gs-sjd-pac", {"k": 8}),
    ("token-recycling", {}),
    ("prompt-lookup", {}),
    ("draft-model", {}),
]
QUICK = {("emu3", method) for method in ("gs-sjd", "token-recycling")} | {("lumina", "gs-sjd"), ("chameleon", "gs-sjd")}


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest) -> Writes:
    return WRITERS[request.param]


def prompts(writer: Writes, rows: int) -> dict[str, Any]:
    """Prompts of two lengths that ask for a picture."""
    ids = torch.randint(3, writer.words, (rows, PROMPT), generator=torch.Generator().manual_seed(rows))
    ids[:, -len(writer.header) :] = torch.tensor(writer.header)
    mask = torch.ones_like(ids)
    mask[1:2, :3] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def drawn(writer: Writes, rows: int, guided: bool) -> tuple[Any, Any]:
    """Ids, and the state in which the call leaves torch's generator."""
    model, given = writer.model(), prompts(writer, rows)
    grid = writer.grid(model, given["input_ids"], *writer.size)
    if guided:
        given |= {"guidance_scale": 3.0, "negative_prompt_ids": given["input_ids"][:, 4:]}
    torch.manual_seed(3)
    how = {"max_new_tokens": grid.length, "do_sample": True, "top_k": 12}
    return model.generate(**given, **how, prefix_allowed_tokens_fn=grid), torch.get_rng_state()


def cases() -> list[Any]:
    made = []
    for name in WRITERS:
        for method, options in METHODS:
            quick = (name, method) in QUICK and "init" not in options
            for rows in (1, 3):
                for guided in (False, True):
                    marks = () if quick and rows == 3 else (pytest.mark.slow,)
                    made.append(pytest.param(name, method, options, rows, guided, marks=marks))
    return made


@pytest.mark.parametrize(("name", "method", "options", "rows", "guided"), cases())
def test_ids_and_the_generators_state_equal_stock(
    name: str, method: str, options: dict[str, Any], rows: int, guided: bool
) -> None:
    writer = WRITERS[name]
    model, (height, width), tail = writer.model(), writer.size, len(writer.tail)
    expected, state = drawn(writer, rows, guided)
    given = {"model": model} if method == "draft-model" else options
    with mmspec.enable(model, method, **given) as spec, warnings.catch_warnings():
        warnings.simplefilter("error")
        found, after = drawn(writer, rows, guided)
    assert torch.equal(found, expected)
    assert torch.equal(after, state)
    assert spec.report is not None
    line = width + (writer.row_end is not None)
    for row in found[:, PROMPT:].tolist():
        assert row[-tail:] == writer.tail and len(row) == height * line + tail
        assert writer.row_end is None or row[width : height * line : line] == [writer.row_end] * height
        assert sum(writer.first <= code < writer.first + CODES for code in row) == height * width
    drafts = method in ("gs-sjd", "draft-model") or (name == "emu3" and method == "prompt-lookup")
    assert spec.report.rounds <= (height * width if drafts else height * line + tail - 1)


def test_a_text_is_the_text_targets_business() -> None:
    model, writer = tiny_emu3(), WRITERS["emu3"]
    torch.manual_seed(3)
    expected = model.generate(**prompts(writer, 1), max_new_tokens=12, do_sample=True)
    with mmspec.enable(model, "gs-sjd"):
        torch.manual_seed(3)
        assert torch.equal(model.generate(**prompts(writer, 1), max_new_tokens=12, do_sample=True), expected)


def test_the_class_says_which_use_of_chameleon_is_meant() -> None:
    """transformers' own class forbids codes, and writes texts; ours differs from it in nothing else."""
    model = tiny_chameleon()
    stock = ChameleonForConditionalGeneration(model.config).eval()
    stock.load_state_dict(model.state_dict())
    assert [installed().target_for(m).qualified for m in (model, stock)] == ["image:chameleon", "text:transformers"]
    ids = prompts(WRITERS["chameleon"], 3)
    for kept in (0, 1, torch.tensor([2, 4])):
        with torch.no_grad():
            ours, theirs = (m(**ids, logits_to_keep=kept).logits for m in (model, stock))
        others = [i for i in range(64) if not FIRST_CODE <= i < FIRST_CODE + CODES]
        assert torch.equal(ours[..., others], theirs[..., others]) and ours.amin() > theirs.amin()
    with pytest.raises(ValueError, match="is for generation"):
        model(**ids, labels=ids["input_ids"])


def test_codes_of_ids() -> None:
    model = tiny_chameleon()
    assert model.codes_of(torch.tensor([[FIRST_CODE + 11, FIRST_CODE]])).tolist() == [[11, 0]]
    with pytest.raises(ValueError, match="the id 22 stands for no code"):
        model.codes_of(torch.tensor([FIRST_CODE, EOSS]))


def test_prompts_that_ask_emu3_for_no_such_picture() -> None:
    class Tokenizer:
        def decode(self, ids: Any) -> str:
            return "90*90"

    model, ids = tiny_emu3(), prompts(WRITERS["emu3"], 1)["input_ids"].clone()
    ids[0, -2] = BEGIN
    with pytest.raises(ValueError, match="the grid has 4\\*5"):
        emu3_grid(model, ids, 4, 5, Tokenizer())
    with pytest.raises(ValueError, match="must end with"):
        emu3_grid(model, ids[:, :-1], 4, 5)
    with pytest.raises(ValueError, match="has no cell"):
        emu3_grid(model, ids, 0, 5)
    with pytest.raises(ValueError, match="needs codes"):
        GridConstraint(GridSpec((Stage(1, 1),)), (), 3)


def test_prompts_that_ask_chameleon_for_no_such_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny_chameleon(), prompts(WRITERS["lumina"], 1)["input_ids"]
    with pytest.raises(
        ValueError, match=r"a picture of 6 × 4 codes has the size \[26, 25\], and the prompt ends with \[25"
    ):
        chameleon_grid(model, ids, 6, 4)
    with pytest.raises(ValueError, match="even numbers of codes, and not 5"):
        chameleon_grid(model, ids, 4, 5)
    with pytest.raises(ValueError, match="must end with <racm3:break>, or with that and a size"):
        chameleon_grid(model, ids[:, :-1], 4, 6)
    with pytest.raises(ValueError, match="has no cell"):
        chameleon_grid(model, ids[:, :-2], 4, 0)
    names = {name: i for name, i in model.config.vocabulary_map.items() if i != LUMINA_END}
    monkeypatch.setattr(model.config, "vocabulary_map", names)
    with pytest.raises(ValueError, match="has no <reserved08799>"):
        chameleon_grid(model, ids, 4, 6)
    monkeypatch.setattr(model.config, "vocabulary_map", None)
    with pytest.raises(ValueError, match="no codes of pictures"):
        chameleon_grid(model, ids, 4, 6)
