"""The cards in the repository are what their facts render to: no number was typed."""

import pytest

from mmspec import shipped
from tools.cards import models
from tools.cards.cards import from_facts, render
from tools.cards.models.text import HEADS, SHIPPED

FACTS = {
    "parameters": 1234567,
    "held_out_nats_per_token": {"code": 3.14159, "prose": 2.5},
    "held_out_modules": ["heapq.py"],
    "held_out_prose_share": 0.05,
    "held_out": {"code": {"right": [0.5, 0.4], "accepted": [0.6, 0.5], "length": 1.7}},
    "recipe": {"steps": 7, "seed": 0},
}


def test_a_card_says_what_the_facts_say() -> None:
    card = render(SHIPPED[0], FACTS)
    for words in (
        "1,234,567 parameters",
        "| code | 3.142 |",
        "Held out: heapq.py",
        "last 5%",
        "steps 7",
        "target: transformers",
    ):
        assert words in card


def test_the_card_of_a_head_goes_along_its_drafts() -> None:
    card = render(HEADS[0], FACTS)
    for words in ("| code | 1 | 0.50 | 0.60 |", "| code | 2 | 0.40 | 0.50 |", "1.70 tokens a pass on code", "eagle"):
        assert words in card


def test_the_card_of_a_model_that_others_trained_says_nothing_of_its_training() -> None:
    (fetched,) = [model for model in SHIPPED if model.measured is None]
    card = render(fetched, {})
    assert "\n# smollm2\n" in card and "## Training" not in card and "knows nothing" not in card


@pytest.mark.parametrize("model", models.SHIPPED, ids=lambda model: model.name)
def test_the_shipped_cards_are_rendered_from_the_facts_beside_weights_and_card(model) -> None:
    cards = shipped.folder("model_cards")
    assert (cards / f"{model.name}.md").read_text() == from_facts(model, shipped.folder("assets"), cards)
