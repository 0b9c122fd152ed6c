"""Cells of `python -m tools.bench one-shape`: kept, validated, shown, and in the card of the model."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from mmspec import shipped
from mmspec.shipped import asset
from tools.cards import cards, equality
from tools.cards.equality import Equality
from tools.cards.models import SHIPPED
from tools.report import lines, markdown

CELL = Equality(
    model="mmspec/text-14m",
    method="suffix",
    dtype="bfloat16",
    shape="one",
    width=9,
    setting="T = 1",
    batch=3,
    outputs=6,
    equal=6,
    units=576,
    acceptance_length=1.5,
    options={"k": 8},
    device="a CPU, 1 thread",
    versions={"torch": "2.13.0"},
)
CELLS = [
    CELL,
    replace(CELL, method="auto", width=11, equal=5, apart=[(2, 40)]),
    replace(CELL, shape="any", width=None, equal=4, apart=[(0, 3), (5, 7)]),
    replace(CELL, dtype="float16"),
]


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "text-14m.one-shape.jsonl"
    lines.save_lines(file, CELLS)
    assert equality.load(file) == CELLS and len(file.read_text().splitlines()) == len(CELLS)


def test_the_table_counts_equal_outputs_by_dtype_and_shape() -> None:
    view = equality.view(CELLS)
    assert view.header[4:] == ("bfloat16, shape one", "bfloat16, shape any", "float16, shape one")
    assert view.rows == [
        ("suffix", "3", "T = 1", "9", "6 of 6", "4 of 6", "6 of 6"),
        ("auto", "3", "T = 1", "11", "5 of 6", "", ""),
        ("all", "", "", "", "11 of 12", "4 of 6", "6 of 6"),
    ]
    assert view.title == "Texts equal to plain decoding, to the bit" and "96 units a text" in view.note


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"equal": 5}, "line 2, .* 5 outputs equal and 0 apart are not 6"),
        ({"width": None}, "one shape has a width"),
        ({"shape": "any"}, "any shape has none"),
        ({"shape": "two"}, "shape"),
        ({"batch": 0}, "batch"),
        ({"equal": -1, "apart": [(0, 0)] * 7}, "equal"),
        ({"method": "a\x1b[31mb"}, "control"),
        ({"options": {"k": "\x07"}}, "control"),
        ({"acceptance_length": "NaN"}, "acceptance_length"),
    ],
)
def test_what_cannot_be_a_cell_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    file = tmp_path / "forged.jsonl"
    file.write_text(json.dumps(asdict(CELL)) + "\n" + json.dumps({**asdict(CELL), **change}) + "\n")
    with pytest.raises(ValueError, match=says):
        equality.load(file)
    for text in ("", "[1]\n", "{}\n", "nothing\n"):
        file.write_text(text)
        with pytest.raises(ValueError, match="bench one-shape"):
            equality.load(file)


def test_the_card_of_a_model_shows_the_document_beside_it(tmp_path: Path) -> None:
    (model,) = [model for model in SHIPPED if model.name == "text-14m"]
    bare = cards.from_facts(model, shipped.folder("assets"), tmp_path)
    lines.save_lines(tmp_path / "text-14m.one-shape.jsonl", [replace(CELL, setting="T | 1")])
    card = cards.from_facts(model, asset("text-14m").parent, tmp_path)
    assert card.startswith(bare) and "## Texts equal to plain decoding, to the bit" in card
    shown = markdown.in_markdown([replace(equality.view([replace(CELL, setting="T | 1")]), title="")])
    assert shown in card and "| T | 1 |" not in card, "text of a document is escaped"
