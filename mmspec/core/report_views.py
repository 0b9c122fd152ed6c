"""A report for other readers: values for JSON, a table for notebooks, and the sum of several calls' reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, fields
from html import escape
from typing import TYPE_CHECKING, Any

from mmspec.registry.fields import EXACTNESS

if TYPE_CHECKING:
    from mmspec.core.report import Report

DERIVED = (
    *("drafted", "accepted", "accepted_by_depth", "acceptance_length", "acceptance_rate", "equivalent_passes"),
    "shape",
)


def values(report: Report) -> dict[str, Any]:
    """Every number and word of a report, of types that JSON has; what `Report.to_dict` returns."""
    kept = {field.name: getattr(report, field.name) for field in fields(report) if not field.name.startswith("_")}
    derived = {name: getattr(report, name) for name in DERIVED}
    sizes = {str(nodes): passes for nodes, passes in sorted(report.sizes.items())}
    bias = None if report.bias is None else asdict(report.bias)
    return {**kept, **derived, "sizes": sizes, "seconds": dict(report.seconds), "bias": bias}


def table(report: Report) -> str:
    """A table of HTML, for notebooks."""
    found = values(report)
    seconds = " · ".join(f"{phase} {spent:.2f} s" for phase, spent in found["seconds"].items())
    promise = f"{report.exactness} with respect to {report.wrt}" if report.wrt else report.exactness
    depths = " · ".join(map(str, report.accepted_by_depth))
    lines = {
        "method": f"{report.method} ({promise})",
        "units": f"{report.emitted} in {report.rounds} passes, {report.rows} rows",
        "acceptance length": f"{report.acceptance_length:.2f}",
        "accepted": f"{report.accepted} of {report.drafted} drafted ({report.acceptance_rate:.0%})",
        "by depth": depths,
        "bias": "" if report.bias is None else str(report.bias),
        "time": seconds,
        "equality": report.shape,
        "caches": "" if report.cache_bytes is None else f"{report.cache_bytes:,} bytes",
        "faults": str(report.faults or ""),
    }
    rows = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in lines.items() if text)
    return f"<table>{rows}</table>"


def added(into: Report, reports: Iterable[Report]) -> Report:
    """Add reports to one that is empty; what `Report.total` returns.

    Counts and times are summed. What is no count is kept if all calls have it: of methods the names, of promises the
    weakest; of cache bytes the most.
    """
    reports = list(reports)
    if not reports:
        return into
    into.method, into.wrt = (_joined(getattr(r, name) for r in reports) for name in ("method", "wrt"))
    into.exactness = max((r.exactness for r in reports), key=EXACTNESS.index)
    for name in ("rounds", "row_rounds", "inner_passes", "emitted", "rows", "faults"):
        setattr(into, name, sum(getattr(r, name) for r in reports))
    if any(r.prompts is not None for r in reports):
        into.prompts = sum(r.rows if r.prompts is None else r.prompts for r in reports)
    into.cache_bytes = max((r.cache_bytes for r in reports if r.cache_bytes is not None), default=None)
    into.sizes = sum((r.sizes for r in reports), Counter[int]())
    into.seconds = {phase: sum(r.seconds[phase] for r in reports) for phase in into.seconds}
    into.repeatable, into.compiled = all(r.repeatable for r in reports), all(r.compiled for r in reports)
    widths = {r.width for r in reports}
    into.width = widths.pop() if len(widths) == 1 else None
    return into


def _joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(word for word in words if word))
