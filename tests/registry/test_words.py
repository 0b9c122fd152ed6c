"""Every word of `needs` and `offers` is declared once, with a sentence; the page for plugin authors lists them."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from mmspec.registry import DrafterSpec, Registry, Spec, TargetSpec, hookimpl
from mmspec.registry.plugin import WORDS

PAGE = Path(__file__).parents[2] / "docs" / "authors" / "README.md"
LIST = re.compile(r"(?<=<!-- words -->\n).*?(?=<!-- /words -->)", re.DOTALL)


class Plugin:
    def __init__(self, *specs: Spec) -> None:
        self.specs = specs

    @hookimpl
    def mmspec_components(self) -> tuple[Spec, ...]:
        return self.specs


def drafter(**facts: Any) -> DrafterSpec:
    return DrafterSpec(name="mine", factory="fractions:Fraction", summary="A drafter.", **facts)


def test_every_word_has_a_sentence() -> None:
    assert all(sentence.startswith("The ") and sentence.endswith(".") for sentence in WORDS.values())


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"needs": {"discret"}}, "drafter 'mine': no word is called 'discret'; did you mean 'discrete'"),
        ({"offers": {"chian"}}, "did you mean 'chain'.* a new word is declared with a sentence"),
        ({"words": {"chain": "It."}}, "the word 'chain' is declared by mmspec; leave it out"),
    ],
)
def test_an_undeclared_word_is_refused(facts: dict[str, Any], says: str) -> None:
    registry = Registry()
    with pytest.raises(ValueError, match=says):
        registry.register(Plugin(drafter(**facts)), "acme")
    assert registry.plugins() == ()


def test_a_plugin_declares_words_of_its_own() -> None:
    net = TargetSpec(
        name="net",
        factory="fractions:Fraction",
        offers={"discrete", "scent"},
        words={"scent": "The target's units are smells."},
        summary="A target.",
    )
    registry = Registry()
    registry.register(Plugin(drafter(needs={"scent"}), net), "acme")
    assert registry.get("target", "net").words == {"scent": "The target's units are smells."}
    with pytest.raises(ValueError, match="no word is called 'scent'"):
        Registry().register(Plugin(drafter(needs={"scent"})), "other")


def test_contributing_lists_the_words() -> None:
    text = PAGE.read_text()
    assert "<!-- words -->\n" in text and "<!-- /words -->" in text
    rows = [f"| `{word}` | {sentence} |" for word, sentence in WORDS.items()]
    table = "\n".join(["| word | means |", "|---|---|", *rows])
    filled = LIST.sub(lambda found: f"\n{table}\n\n", text)
    if os.environ.get("RECORD"):
        PAGE.write_text(filled)
    assert filled == PAGE.read_text(), "run this test with RECORD=1 to write the list"
