"""The words of `needs` and `offers`, each declared once, with a sentence.

The page for plugin authors lists them; `fill` writes that list, and a test compares it.
"""

import re
from collections.abc import Iterable

from mmspec.registry.specs import Spec
from mmspec.registry.suggest import unknown

WORDS = {
    "discrete": "The target's units are ids of a vocabulary.",
    "continuous": "The target's units are vectors.",
    "tree": "The target verifies trees of drafts; a drafter with this word drafts trees, and needs such a target.",
    "window": "The target verifies, and the drafter drafts, a window of units that is refined from round to round.",
    "chain": "The drafter drafts chains; decoding without drafts counts as one.",
    "q": "The distribution that units are drawn from is explicit, and a draft carries that of its units.",
    "hidden": "The target returns hidden states on request.",
    "grow": "The target verifies a draft in pieces, so that it may draft for a larger target.",
    "live": "The target starts from a call that is under way, as the middle model of a cascade does.",
    "truncate": "The target can forget its last units.",
    "redraw": "The rule's verdict holds a draw from the target's distribution at every node.",
    "rerank": "The rule stays exact where nodes are dropped or reordered after their units were seen.",
    "text": "The target's units are the tokens of a text.",
    "codebook": "The target's units are codes of an image tokenizer, whose embeddings it has.",
    "frames": "The target's units are the codes of video frames, with actions between the frames.",
    "external": "The target's units come from outside, such as a player's actions; it has no distribution of them.",
}
"""Words that mmspec declares; a plugin declares its own in the field `words` of a spec."""

_BLOCK = re.compile(r"(?<=<!-- words -->\n).*?(?=<!-- /words -->)", re.DOTALL)


def refuse_undeclared(specs: Iterable[Spec]) -> None:
    """Refuse a plugin's specs if one has a word that neither mmspec nor the plugin itself declares.

    Raises:
        ValueError: Names the spec, the word and the nearest declared one; or the word that mmspec declares already.
    """
    listed = [(spec, vars(spec)) for spec in specs]
    declared = dict(WORDS)
    for spec, facts in listed:
        for word, sentence in facts.get("words", {}).items():
            if word in WORDS:
                raise ValueError(f"{spec.kind} {spec.name!r}: the word {word!r} is declared by mmspec; leave it out")
            declared[word] = sentence
    for spec, facts in listed:
        for word in sorted(facts.get("needs", frozenset()) | facts.get("offers", frozenset())):
            if word not in declared:
                hint = "; a new word is declared with a sentence, words={…}"
                raise ValueError(f"{spec.kind} {spec.name!r}: {unknown('word', word, declared)}{hint}")


def fill(text: str) -> str:
    """A Markdown text with the list of words between its lines `<!-- words -->` and `<!-- /words -->`."""
    rows = [f"| `{word}` | {sentence} |" for word, sentence in WORDS.items()]
    table = "\n".join(["| word | means |", "|---|---|", *rows])
    return _BLOCK.sub(lambda found: f"\n{table}\n\n", text)
