"""A plugin as far as it is known, whether or not it could be loaded; and the words of `needs` and `offers`.

Each word is declared once, with a sentence. The page for plugin authors lists them.
"""

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mmspec.registry.printable import one_line
from mmspec.registry.specs import Spec
from mmspec.registry.suggest import unknown

CORE = "core"
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


class PluginError(RuntimeError):
    """A plugin failed and `MMSPEC_STRICT` forbids going on without it."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A line of `mmspec plugins`."""

    name: str  # the plugin's name; what stands before the colon in `plugin:name`
    module: str  # the module that it is, or the type of the object that it is
    location: str | None = None  # the module's file, where there is one
    distribution: str | None = None  # the installed distribution that brought it, if any
    version: str | None = None  # that distribution's version
    components: tuple[Spec, ...] = ()  # the specs of what it offers
    error: str | None = None  # why it could not be loaded, in one line
    blocked: bool = False  # true if `MMSPEC_PLUGINS` left it out
    seconds: float = 0.0  # how long its import and its manifest took

    @property
    def status(self) -> Literal["ok", "error", "blocked"]:
        """One word for tables."""
        return "error" if self.error else "blocked" if self.blocked else "ok"


def describe(error: BaseException) -> str:
    """One line: what was raised, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {one_line(error)}{where}"


def refuse_undeclared(specs: Iterable[Spec]) -> None:
    """Refuse a plugin's specs if one has a word that neither mmspec nor the plugin itself declares."""
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
