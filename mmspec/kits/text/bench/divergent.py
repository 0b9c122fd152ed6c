"""Prompts from which many texts lead on: places in held-out text where a title or a hypothesis begins.

* `titles`: a function of Python up to the opening quotes of its docstring, whose first line is its title.
* `hypotheses`: verse up to the first words of a supposition: "If I", "What if he".
"""

import re
from collections.abc import Mapping, Sequence

KINDS = ("titles", "hypotheses")
_TITLE = re.compile(r'^ *def [^\n]+:\n +"""', re.MULTILINE)
_HYPOTHESIS = re.compile(r"^(?:What if|If|Were|Suppose) +\w+", re.MULTILINE)


def prompts(pieces: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Prompts by kind, at most one from a piece."""
    places = (_TITLE, pieces["code"]), (_HYPOTHESIS, pieces["prose"])
    found = [[piece[: match.end()] for piece in texts if (match := place.search(piece))] for place, texts in places]
    return dict(zip(KINDS, found, strict=True))
