"""One table for a whole benchmark: speed over the fastest peer, by method and setting."""

from collections.abc import Mapping, Sequence

from mmspec.report.result import PLAIN, Result, Row, speedup_of
from mmspec.report.views import BELOW, HONEST, WARNING, View, base_of, plain_of, ratio, real

AGAINST = "measured against"
"""Label of the first row, which names the fastest peer of every setting."""


def summary(result: Result) -> View:
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
