"""Contents of a benchmark's tables: every number as text, computed from raw repeats.

A method that is slower than plain decoding is marked so, and one whose output is not the model's has a warning. A view
holds plain text; the printers escape it.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mmspec.report.result import PLAIN, Peer, Result, Row, VsBest, ratios_of, speedup_of

WARNING = "⚠"
SLOWER = "slower"
BELOW = "▼"
HONEST = ("invariant", "lossless")
LENGTHS = ("acceptance length", "equivalent passes")


@dataclass(frozen=True)
class View:
    title: str  # title above the table
    header: tuple[str, ...]  # names of the columns
    rows: Sequence[tuple[str, ...]]  # cells, row by row
    note: str = ""  # text below the table


def facts(result: Result) -> str:
    """A paragraph on where and how the result was measured."""
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    prompts = ", ".join(f"{count} {name}" for name, count in result.prompts.items())
    repeats = " or ".join(str(count) for count in sorted({len(row.repeats_s) for row in result.rows}))
    return (
        f"{result.model} on {result.device}; {versions}; seed {result.seed}; prompts: {prompts}; "
        f"{repeats} repeats, interleaved in one process. Speed-up: median over the repeats of plain seconds / own "
        "seconds, in brackets the smallest and the largest; × is the same against others. Equivalent passes: how often "
        "the target's weights were read in one repeat, by its passes and by drafts of the same weights."
        + (f" {result.how}" if result.how else "")
    )


def real(result: Result, setting: str) -> list[Row]:
    """Rows of a setting that count as results: real drafts, batch 1."""
    return [row for row in result.rows if (row.setting, row.mode, row.batch) == (setting, "real", 1)]


def peers_of(result: Result, setting: str) -> list[str]:
    return [
        key.removeprefix(f"{setting} / ")
        for key, peer in result.peers.items()
        if peer.setting == setting and peer.repeats_s
    ]


def base_of(result: Result, setting: str) -> tuple[str, list[float]]:
    """Name and seconds of what speed is measured against in a setting: the fastest peer, or plain decoding, if it is
    faster than a loop that we wrote.
    """
    plain = plain_of(result, setting)
    peers = {name: result.peers[f"{setting} / {name}"] for name in peers_of(result, setting)}
    times = {name: p.repeats_s for name, p in peers.items() if not p.ours or speedup_of(plain, p.repeats_s) > 1}
    if not times:
        return PLAIN, plain
    fastest = max(times, key=lambda name: speedup_of(plain, times[name]))
    return fastest, times[fastest]


def today_of(result: Result, setting: str) -> tuple[str, list[float]]:
    """Name and seconds of what a user runs today: the first of the others, or plain decoding if there is none."""
    names = peers_of(result, setting)
    return (
        (names[0], result.peers[f"{setting} / {names[0]}"].repeats_s) if names else (PLAIN, plain_of(result, setting))
    )


def vs_best(result: Result) -> dict[str, VsBest]:
    """Our speed in every setting as a multiple of the best other way's, for `Result.vs_best`."""
    found = {}
    for setting in result.settings:
        way, seconds = base_of(result, setting)
        times = {row.method: round(speedup_of(seconds, row.repeats_s), 4) for row in real(result, setting)}
        found[setting] = VsBest(way, times)
    return found


def plain_of(result: Result, setting: str) -> list[float]:
    """Seconds of plain decoding in a setting: from its own row, else from the pairs of the first row."""
    rows = real(result, setting) or [row for row in result.rows if row.setting == setting]
    return next((row.repeats_s for row in rows if row.method == PLAIN), rows[0].plain_repeats_s)


def speeds(result: Result) -> list[View]:
    return [_speed(result, setting) for setting in result.settings]


def _speed(result: Result, setting: str) -> View:
    names, ours = peers_of(result, setting), real(result, setting)
    others = {key: peer for key, peer in result.peers.items() if peer.setting == setting}
    header = ("method", "exactness", *LENGTHS, f"{result.unit}s/s")
    ways = _today_first([f"× {name}" for name in names], "speed-up over plain")
    rows = [_method(result, row, names) for row in ours]
    rows += [_peer(result, key, names) for key in others]
    notes = [f"The fastest of the others: {base_of(result, setting)[0]}."] if len(names) > 1 else []
    notes += [f"{key.removeprefix(f'{setting} / ')}: {how}." for key, p in others.items() if (how := _how(p))]
    if any(row.exactness not in HONEST for row in ours):
        notes.append(f"{WARNING}: the output is not the model's; see the quality numbers.")
    return View(setting, (*header, *ways), rows, " ".join(notes))


def _today_first(others: Sequence[str], plain: str) -> tuple[str, ...]:
    """The cells of speeds: over what a user runs today, over plain decoding, over the rest of the others."""
    return *others[:1], plain, *others[1:]


def _how(peer: Peer) -> str:
    """The way in which a peer was run, and the setting that was chosen for it."""
    choice = f"{peer.chosen}, on a part of the prompts the fastest of {' / '.join(peer.tried)}" if peer.tried else ""
    return "; ".join(part for part in (peer.note, choice) if part)


def lengths(row: Row) -> tuple[str, str]:
    read = "not counted" if row.equivalent_passes is None else str(row.equivalent_passes)
    return f"{row.acceptance_length:.2f}", read


def _method(result: Result, row: Row, names: Sequence[str]) -> tuple[str, ...]:
    what = (row.method, badge(row.exactness), *lengths(row), f"{row.tokens_per_second:.0f}")
    times = [f"{result.against(row, name):.2f}" for name in names]
    return (*what, *_today_first(times, ratio(row.plain_repeats_s, row.repeats_s)))


def _peer(result: Result, key: str, names: Sequence[str]) -> tuple[str, ...]:
    peer = result.peers[key]
    name = key.removeprefix(f"{peer.setting} / ")
    if not peer.repeats_s:
        return (name, "", "", "", "", *_today_first(["" for _ in names], "not run"))
    bases = [result.peers[f"{peer.setting} / {other}"].repeats_s for other in names]
    tokens = f"{peer.units / statistics.median(peer.repeats_s):.0f}" if peer.units else ""
    speed = ratio(plain_of(result, peer.setting), peer.repeats_s)
    return (
        name,
        "",
        "",
        "",
        tokens,
        *_today_first([f"{speedup_of(base, peer.repeats_s):.2f}" for base in bases], speed),
    )


def costs(result: Result) -> View:
    """Shares of time, and quality numbers."""
    claims = [row for setting in result.settings for row in real(result, setting)]
    rows = [(row.setting, row.method, shares(row), quality(row)) for row in claims]
    return View(f"Time, {result.piece}", ("setting", "method", "draft / verify / rest", "quality"), rows)


def ratio(base: Sequence[float], own: Sequence[float]) -> str:
    """Median and range of the paired ratios, marked if the median is slower than the base."""
    ratios = ratios_of(base, own)
    middle = statistics.median(ratios)
    return f"{middle:.2f} ({min(ratios):.2f}–{max(ratios):.2f})" + (f" {SLOWER}" if middle < 0.995 else "")


def badge(exactness: str) -> str:
    """Exactness of a rule, with a warning if its output is not the model's."""
    return exactness if exactness in HONEST else f"{WARNING} {exactness}"


def shares(row: Row) -> str:
    parts = (row.draft_s, row.verify_s, row.rest_s)
    return " / ".join(f"{part / sum(parts):.0%}" for part in parts) if sum(parts) else ""


def quality(row: Row) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in row.quality.items())


def batches(result: Result) -> View:
    rows = [_batch(row) for row in result.rows if row.batch > 1 and row.mode == "real"]
    header = ("setting", "method", "exactness", "batch", "acceptance length", f"{result.unit}s/s", "× its rows alone")
    note = "Speed-up is over plain decoding of the same batch; × is against the same rows one after the other."
    return View(f"Several {result.piece}s at a time", (*header, "speed-up over plain", "quality"), rows, note)


def _batch(row: Row) -> tuple[str, ...]:
    scaling = f"{speedup_of(row.alone_repeats_s, row.repeats_s):.2f}" if row.alone_repeats_s else ""
    what = (row.setting, row.method, badge(row.exactness), str(row.batch), f"{row.acceptance_length:.2f}")
    return (*what, f"{row.tokens_per_second:.0f}", scaling, ratio(row.plain_repeats_s, row.repeats_s), quality(row))


def keys_of(mappings: Iterable[dict[str, float]]) -> list[str]:
    return list(dict.fromkeys(key for mapping in mappings for key in mapping))
