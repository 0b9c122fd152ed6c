"""Errors that teach: what was asked for, what is nearest, what there is."""

import difflib
from collections.abc import Iterable, Mapping


def unknown(what: str, name: object, known: Iterable[str], meant: Mapping[str, str] | None = None) -> str:
    """The message for the name of a thing (`what`, singular) that nobody knows.

    `meant` has names that other libraries use, with the names of the same things here.

    Example:
        >>> unknown("rule", "blok", ["block", "match"])
        "no rule is called 'blok'; did you mean 'block'? There is: block, match"
    """
    names, asked = sorted(set(known)), str(name).lower()
    here = (meant or {}).get(asked)
    nearest = [here] if here in names else difflib.get_close_matches(asked, names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, nearest))}?" if nearest else "."
    return f"no {what} is called {name!r:.200}{hint} There is: {', '.join(names) or 'none'}"
