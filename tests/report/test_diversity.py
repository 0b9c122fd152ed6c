"""Cells of `python -m tools.bench diversity`: validated, shown, and in the card of the model."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from mmspec import shipped
from tools.cards import cards, diversity
from tools.cards.diversity import Diversity
from tools.cards.models import SHIPPED
from tools.report import lines

PLAIN = Diversity(
    model="mmspec/text-14m",
    method="plain",
    exactness="invariant",
    kind="titles",
    temperature=1.0,
    prompts=2,
    outputs=8,
    units=32,
    figures={"distinct_2": [0.9, 0.92, 0.94], "entropy": [4.0, 4.1, 4.2]},
    same=1.0,
    acceptance_length=1.0,
    device="a CPU, 1 thread",
    versions={"torch": "2.13.0"},
)
LOSSY = replace(
    PLAIN,
    method="bild",
    exactness="lossy",
    figures={"distinct_2": [0.8, 0.81, 0.79], "entropy": [4.1, 4.0, 4.1]},
    same=0.25,
    acceptance_length=2.5,
    bias=0.1,
)


def test_a_mean_far_from_plains_is_outside() -> None:
    """distinct-2: 0.92 and 0.80; variances 0.0004 and 0.0001 over 3 sets: an error of 0.0129; 0.12 is 9 of them.
    entropy: 4.1 and 4.067; an error of 0.067.
    """
    assert diversity.outside(LOSSY, PLAIN) == ["distinct_2"] and not diversity.outside(PLAIN, PLAIN)
    near = replace(LOSSY, figures={**LOSSY.figures, "distinct_2": [0.86, 0.88, 0.9]})
    assert not diversity.outside(near, PLAIN)


def test_the_table() -> None:
    view = diversity.view([PLAIN, LOSSY])
    assert view.rows == [
        ("titles", "plain", "invariant", "1.00", "100%", "0.920 ± 0.020", "4.100 ± 0.100", "inside"),
        ("titles", "bild", "lossy, bias 0.100", "2.50", "25%", "0.800 ± 0.010", "4.067 ± 0.058", "outside: distinct-2"),
    ]
    assert "3 sets of seeds, 8 texts of 32 tokens" in view.note


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"figures": {}}, "line 2, .* one value for every set"),
        ({"figures": {"a": [1, 2], "b": [1]}}, "one value for every set"),
        ({"figures": {"a": [1]}}, "no spread"),
        ({"figures": {"a": ["NaN", 1]}}, "figures"),
        ({"kind": "poems"}, "no plain decoding of poems"),
        ({"same": 2}, "same"),
        ({"method": "a\x1b[31mb"}, "control"),
    ],
)
def test_what_cannot_be_a_cell_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    file = tmp_path / "forged.jsonl"
    file.write_text(json.dumps(asdict(PLAIN)) + "\n" + json.dumps({**asdict(LOSSY), **change}) + "\n")
    with pytest.raises(ValueError, match=says):
        diversity.load(file)


def test_the_card_of_a_model_shows_the_document_beside_it(tmp_path: Path) -> None:
    (model,) = [model for model in SHIPPED if model.name == "text-14m"]
    lines.save_lines(tmp_path / "text-14m.diversity.jsonl", [PLAIN, LOSSY])
    card = cards.from_facts(model, shipped.folder("assets"), tmp_path)
    assert "## Diversity of sampled texts" in card and "outside: distinct-2" in card
