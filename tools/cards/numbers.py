"""Numbers in Markdown, written by `python -m tools.cards`: blocks between markers, filled from the JSON of a benchmark.

    <!-- bench: model_cards/text-14m.bench.json summary -->
    (a table)
    <!-- /bench -->

    … writes code <!-- bench: model_cards/text-14m.bench.json speedup "code, greedy" auto -->1.61<!-- /bench --> times …

    | text | <!-- bench: model_cards/text-14m.bench.json cells "code, greedy" suffix -->`suffix` | …<!-- /bench --> |

The path is relative to the Markdown file. A number that is typed by hand is overwritten, and fails the test that
compares the file with what the command would write.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mmspec.registry.suggest import unknown
from mmspec.report import views
from mmspec.report.result import PLAIN, Peer, Row, speedup_of
from mmspec.report.views import BELOW, HONEST, WARNING, View, base_of, plain_of, ratio, real
from tools.report import markdown, whole
from tools.report.markdown import escaped
from tools.report.whole import WholeResult, load_whole

OPEN, CLOSE = "<!-- bench: {} -->", "<!-- /bench -->"
_BLOCK = re.compile(r"<!-- bench: ([^\n]*?) -->(.*?)<!-- /bench -->", re.DOTALL)
_ANY = re.compile(r"<!-- /?bench\b")

#: Tables; a blank line is written before and after them.
TABLES: dict[str, Callable[[WholeResult], str]] = {
    "tables": markdown.markdown,
    "speed": lambda result: markdown.in_markdown(views.speeds(result), views.facts(result)),
    "summary": lambda result: markdown.in_markdown([summary(result)]),
    "costs": lambda result: markdown.in_markdown([whole.costs(result)]),
    "quality": lambda result: markdown.in_markdown([whole.qualities(result)]),
    "held-out": lambda result: markdown.in_markdown([whole.forced(result)]),
    "batches": lambda result: markdown.in_markdown([views.batches(result)]),
    "limits": lambda result: markdown.in_markdown([view for view in whole.limits(result) if view.rows]),
    "facts": lambda result: markdown.in_markdown([], views.facts(result)),
}


def fill(text: str, folder: Path, at_hand: Mapping[str, WholeResult] | None = None) -> str:
    """A Markdown text with every block written anew.

    Paths in markers are relative to the folder; results `at_hand`, by path, are not read from files.

    Raises:
        ValueError: A block is not closed, or its file, table, setting, method or peer does not exist; says what exists.
    """
    if len(_ANY.findall(text)) != 2 * len(_BLOCK.findall(text)):
        raise ValueError(f"a block of numbers is not closed: every {OPEN.format('FILE WHAT')} needs a {CLOSE}")
    results = dict(at_hand or {})

    def written(match: re.Match[str]) -> str:
        file = shlex.split(match[1])[0]
        if file not in results:
            if not (folder / file).is_file():
                raise ValueError(f"the numbers <{match[1]}> come from {folder / file}, which does not exist")
            results[file] = load_whole(folder / file)
        return block(match[1], results[file])

    return _BLOCK.sub(written, text)


def block(query: str, result: WholeResult) -> str:
    """One block, markers included.

    Args:
        query: `FILE WHAT [SETTING METHOD [PEER | NAME]]`; quotes hold words together.
        result: The result in the file.
    """
    _, what, *names = [*shlex.split(query), ""] if len(shlex.split(query)) == 1 else shlex.split(query)
    if what in TABLES:
        content = f"\n\n{TABLES[what](result)}\n\n"
    elif what in NUMBERS:
        content = NUMBERS[what](result, names, query)
    else:
        raise ValueError(f"<{query}>: {unknown('table or number', what, [*TABLES, *NUMBERS])}")
    return f"{OPEN.format(query)}{content}{CLOSE}"


def speedup(result: WholeResult, names: Sequence[str], query: str) -> str:
    """`speedup SETTING METHOD [PEER]`: times as fast as a peer (the setting's fastest, or `plain`)."""
    setting, method, base = _named(names, query)
    row = _row(result, setting, method, query)
    if base == PLAIN:
        return f"{row.speedup:.2f}"
    seconds = _peer(result, setting, base, query).repeats_s if base else views.base_of(result, setting)[1]
    return f"{speedup_of(seconds, row.repeats_s):.2f}"


def acceptance(result: WholeResult, names: Sequence[str], query: str) -> str:
    """`acceptance SETTING METHOD`: acceptance length."""
    setting, method, _ = _named(names, query)
    return f"{_row(result, setting, method, query).acceptance_length:.2f}"


def measure(result: WholeResult, names: Sequence[str], query: str) -> str:
    """`measure SETTING METHOD NAME`: a number about the output, by its name in `Row.quality`."""
    setting, method, name = _named(names, query)
    quality = _row(result, setting, method, query).quality
    if name not in quality:
        raise ValueError(f"<{query}>: {unknown('quality', name, list(quality))}")
    return f"{quality[name]:.2f}"


def cells(result: WholeResult, names: Sequence[str], query: str) -> str:
    """`cells SETTING METHOD [PEER]`: cells of a table: method, acceptance length, speed over what a user runs today,
    speed over a peer, exactness. The peer is the setting's fastest if none is named.
    """
    setting, method, named = _named(names, query)
    row = _row(result, setting, method, query)
    peer, seconds = whole.base_in_words(result, setting)
    if named:
        peer, seconds = named, _peer(result, setting, named, query).repeats_s
    base, exactness = map(escaped, (peer, views.badge(row.exactness)))
    times = views.ratio(seconds, row.repeats_s)
    way, today = views.today_of(result, setting)
    first = f"{speedup_of(today, row.repeats_s):.2f} × {escaped(way)}"
    return f"`{escaped(method)}` | {row.acceptance_length:.2f} | {first} | {times} × {base} | {exactness}"


#: Numbers within a line.
NUMBERS: dict[str, Callable[[WholeResult, Sequence[str], str], str]] = {
    "speedup": speedup,
    "acceptance": acceptance,
    "measure": measure,
    "cells": cells,
}


def _named(names: Sequence[str], query: str) -> tuple[str, str, str]:
    if len(names) not in (2, 3):
        raise ValueError(f"<{query}>: a number needs a setting in quotes and a method, and perhaps a peer or a name")
    return names[0], names[1], names[2] if len(names) == 3 else ""


def _row(result: WholeResult, setting: str, method: str, query: str) -> Row:
    rows = views.real(result, setting)
    if not rows:
        raise ValueError(f"<{query}>: {unknown('setting', setting, result.settings)}")
    for row in rows:
        if row.method == method:
            return row
    raise ValueError(f"<{query}>: {unknown('method', method, [row.method for row in rows])}")


def _peer(result: WholeResult, setting: str, name: str, query: str) -> Peer:
    names = views.peers_of(result, setting)
    if name not in names:
        raise ValueError(f"<{query}>: {unknown('peer', name, [PLAIN, *names])}")
    return result.peers[f"{setting} / {name}"]


AGAINST = "measured against"
"""Label of the first row, which names the fastest peer of every setting."""


def summary(result: WholeResult) -> View:
    """Speed over the fastest peer by method and setting."""
    methods = dict.fromkeys(row.method for setting in result.settings for row in real(result, setting))
    claimed = [setting for setting in result.settings if real(result, setting)]
    bases = {setting: base_of(result, setting) for setting in claimed}
    rows = [(AGAINST, *(bases[setting][0] for setting in claimed))]
    for method in methods:
        own = {s: row for s in claimed for row in real(result, s) if row.method == method}
        warned = any(row.exactness not in HONEST for row in own.values())
        cells = (_against(*bases[s], own[s], plain_of(result, s)) if s in own else "" for s in claimed)
        rows.append((f"{WARNING} {method}" if warned else method, *cells))
    note = (
        f"Times as fast as what the first row names ({_whose(bases)}): median of the paired repeats, in brackets the "
        "smallest and the largest."
    )
    marked = any(cell.endswith(BELOW) for row in rows for cell in row)
    return View("", ("method", *claimed), rows, note + (f" {BELOW}: slower than our own plain decoding." * marked))


def _whose(bases: Mapping[str, tuple[str, Sequence[float]]]) -> str:
    """What the bases of all settings have in common, in words."""
    found = {name == PLAIN for name, _ in bases.values()}
    peers = "the fastest other way to decode the same"
    if found == {True}:
        return "our own plain decoding"
    return f"{peers}, or our own plain decoding" if True in found else peers


def _against(name: str, base: Sequence[float], row: Row, plain: Sequence[float]) -> str:
    """The ratio to a peer, marked if plain decoding is faster than the row."""
    below = name != PLAIN and speedup_of(plain, row.repeats_s) < 0.995
    return ratio(base, row.repeats_s) + (f" {BELOW}" if below else "")
