"""The result of a whole benchmark: beside what `mmspec bench` measures, what is possible, and what chance does."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import FiniteFloat

from mmspec.report import table, views
from mmspec.report.result import PLAIN, Nodes, Result, Row
from mmspec.report.trust import checked
from mmspec.report.views import View, base_of, keys_of, quality, ratio, real, shares

OTHERS = "plain, other seeds"


@dataclass(frozen=True)
class Limits:
    # Seconds of a target pass over N nodes / over one node, by N
    v_of_n: dict[Nodes, FiniteFloat] = field(default_factory=dict)
    # Seconds of a draft model's pass / of a target pass over one node, by draft model
    c: dict[str, FiniteFloat] = field(default_factory=dict)
    # Least possible seconds of a pass (by memory bandwidth and arithmetic) / its measured seconds, by N
    F_hw: dict[Nodes, FiniteFloat] = field(default_factory=dict)
    # Seconds of drafts and of bare passes of the same sizes / seconds of the rounds, by `"setting / method"`; the rest
    # is overhead of the loop
    F_pipe: dict[str, FiniteFloat] = field(default_factory=dict)
    # Acceptance length of the method's tree / of the best tree of as many nodes
    F_tree: dict[str, FiniteFloat] = field(default_factory=dict)
    # Measured speed-up / the best speed-up that the measured acceptance allows, with free drafts and passes at their
    # floor
    F_total: dict[str, FiniteFloat] = field(default_factory=dict)
    # The measurements behind the floors: bandwidth, arithmetic, bytes, seconds
    measured: dict[str, FiniteFloat] = field(default_factory=dict)
    # Further numbers about passes over N nodes, by name, then by N
    by_nodes: dict[str, dict[Nodes, FiniteFloat]] = field(default_factory=dict)


@dataclass(frozen=True)
class WholeResult(Result):
    limits: Limits = field(default_factory=Limits)  # what the hardware and the drafts would allow
    # Acceptance length on held-out text that is forced as the output, by text, then by method
    teacher_forced: dict[str, dict[str, FiniteFloat]] = field(default_factory=dict)
    # Values of `quality` for plain decoding with other seeds, by setting and name: the variation by chance
    floor: dict[str, dict[str, list[FiniteFloat]]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)  # explanations of names in `quality`


def load_whole(path: Path) -> WholeResult:
    """Read and validate a document, as `mmspec.report.trust.load_result`."""
    return checked(Path(path).read_bytes(), str(path), WholeResult)


@table.everything.register
def everything(result: WholeResult) -> list[View]:
    tables = [
        *views.speeds(result),
        qualities(result),
        costs(result),
        views.batches(result),
        forced(result),
        table.depths(result),
        modes(result),
        *limits(result),
        rounds(result),
        chosen(result),
    ]
    return [view for view in tables if view.rows]


def costs(result: WholeResult) -> View:
    """Shares of time, peak memory, and quality numbers unless these have a table of their own."""
    apart = bool(result.floor)
    rows = [
        (row.setting, row.method, shares(row), _memory(result, row), *(() if apart else (quality(row),)))
        for setting in result.settings
        for row in real(result, setting)
    ]
    header = ("setting", "method", "draft / verify / rest", "peak memory", *(() if apart else ("quality",)))
    known = [row for row in result.rows if row.peak_memory is not None]
    return View("Time, memory" + ("" if apart else f", {result.piece}"), header, rows, _memory_note(known))


def _memory_note(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    if any(row.laid_out is None for row in rows):
        return "Peak memory: weights, and the most that a call adds; copies of weights laid out for narrow passes, not."
    return "Peak memory: weights, copies of them laid out for narrow passes where these pay, and the most a call adds."


def _memory(result: WholeResult, row: Row) -> str:
    if row.peak_memory is None:
        return ""
    plain = next((r.peak_memory for r in real(result, row.setting) if r.method == PLAIN), None)
    times = f" ({row.peak_memory / plain:.2f} × plain)" if plain and row.method != PLAIN else ""
    copies = f", {row.laid_out / 1e6:.1f} MB of it copies" if row.laid_out else ""
    return f"{row.peak_memory / 1e6:.1f} MB{times}{copies}"


def base_in_words(result: WholeResult, setting: str) -> tuple[str, list[float]]:
    way, seconds = base_of(result, setting)
    return way if way != PLAIN else "our plain decoding", seconds


def qualities(result: WholeResult) -> View:
    """Quality numbers of every method, and of plain decoding with other seeds."""
    claims = [row for setting in result.floor for row in real(result, setting)]
    names = keys_of(row.quality for row in claims)
    rows = []
    for setting, floor in result.floor.items():
        for row in real(result, setting):
            rows.append((setting, row.method, *(f"{row.quality[n]:.3g}" if n in row.quality else "" for n in names)))
        rows.append((setting, OTHERS, *(_range(floor.get(name, ())) for name in names)))
    header = ("setting", "method", *(name.replace("_", " ") for name in names))
    notes = [f"{name.replace('_', ' ').capitalize()}: {result.notes[name]}." for name in names if name in result.notes]
    return View(f"What the {result.piece}s are like", header, rows, " ".join(notes))


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.3g}–{max(values):.3g}" if values else ""


def forced(result: WholeResult) -> View:
    """Acceptance length on forced held-out text: small models loop, and loops flatter drafters that look things up."""
    texts = list(result.teacher_forced)
    methods = keys_of(result.teacher_forced.values())
    cells = {text: {name: f"{length:.2f}" for name, length in by.items()} for text, by in result.teacher_forced.items()}
    rows = [(name, *(cells[text].get(name, "") for text in texts)) for name in methods]
    return View(f"Acceptance length on held-out {result.piece} whose truth is forced", ("method", *texts), rows)


def chosen(result: WholeResult) -> View:
    """The options that each method was given, so that a row says what was run whatever defaults become."""
    given = {row.method: row.options for setting in result.settings for row in real(result, setting)}
    rows = [
        (name, ", ".join(f"{option}={value}" for option, value in options.items() if option != "method"))
        for name, options in given.items()
        if options
    ]
    return View("Options of the rows", ("method", "options"), rows, "Rows that are not here have defaults alone.")


def modes(result: WholeResult) -> View:
    """Rows whose drafts are artificial (`Row.mode`): they are bounds and overheads, not results."""
    header = ("setting", "method", "drafts", "acceptance length", "speed-up over plain", "draft / verify / rest")
    rows = [
        (r.setting, r.method, r.mode, f"{r.acceptance_length:.2f}", ratio(r.plain_repeats_s, r.repeats_s), shares(r))
        for r in result.rows
        if r.mode != "real"
    ]
    note = "Oracle drafts are the truth, synthetic ones are accepted at a given rate, empty ones are none."
    return View("Bounds and overheads, no claims", header, rows, note)


def limits(result: WholeResult) -> list[View]:
    """The bounds by hardware and drafts, beside what was measured."""
    limits = result.limits
    sizes = sorted(keys_of((limits.v_of_n, limits.F_hw)), key=int)
    passes = [(n, _number(limits.v_of_n, n), _number(limits.F_hw, n)) for n in sizes]
    parts = (limits.F_pipe, limits.F_tree, limits.F_total)
    reached = [(key, *(_number(part, key) for part in parts)) for key in keys_of(parts)]
    return [
        View(
            "Target passes over N nodes",
            ("N", "v(N)", "F_hw"),
            passes,
            "v(N): seconds / those of one node. F_hw: floor / seconds.",
        ),
        View(
            "Cost of a draft model's pass", ("draft model", "c"), [(name, f"{c:.3f}") for name, c in limits.c.items()]
        ),
        View(
            "What was reached of what is possible",
            ("setting / method", "F_pipe", "F_tree", "F_total"),
            reached,
            "F_pipe: drafts and bare eager passes, of what the rounds took; compiled rounds may take less. "
            "F_tree: of the best tree of as many nodes. F_total: of a perfect pass with free drafts.",
        ),
        View("Measured", ("what", "value"), [(name, f"{value:.4g}") for name, value in limits.measured.items()]),
    ]


def rounds(result: WholeResult) -> View:
    """Measured and possible costs of rounds over N nodes."""
    columns = result.limits.by_nodes
    sizes = sorted(keys_of(columns.values()), key=int)
    rows = [(n, *(f"{by[n]:.3g}" if n in by else "" for by in columns.values())) for n in sizes]
    return View("Rounds over N nodes", ("N", *columns), rows)


def _number(mapping: dict[str, float], key: str) -> str:
    return f"{mapping[key]:.2f}" if key in mapping else ""
