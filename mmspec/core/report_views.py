"""A report for other readers: values for JSON, a table for notebooks, and the sum of several calls' reports.

`report` is a `mmspec.core.report.Report` everywhere, whose methods these are.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from mmspec.registry.fields import EXACTNESS


def values(report: Any) -> dict[str, Any]:
    """Every number and word of a report, of types that JSON has; what `Report.to_dict` returns. Traces are apart."""
    kept = {name: value for name, value in vars(report).items() if not name.startswith("_") and name != "trace"}
    return {
        **kept,
        "sizes": {str(nodes): passes for nodes, passes in sorted(report.sizes.items())},
        "seconds": dict(report.seconds),
        "drafted": report.drafted,
        "accepted": report.accepted,
        "accepted_by_depth": report.accepted_by_depth,
        "acceptance_length": report.acceptance_length,
        "acceptance_rate": report.acceptance_rate,
        "equivalent_passes": report.equivalent_passes,
        "shape": report.shape,
        "bias": None if report.bias is None else asdict(report.bias),
    }


def table(report: Any) -> str:
    """A table of HTML, for notebooks."""
    lines = {
        "method": f"{report.method} ({report.promise})",
        "units": f"{report.emitted} in {report.rounds} passes, {report.rows} rows",
        "drafts": f"up to {report.k} units ({report.k_from or 'k='})" if report.k else "",
        "acceptance length": f"{report.acceptance_length:.2f}",
        "accepted": f"{report.accepted} of {report.drafted} drafted ({report.acceptance_rate:.0%})",
        "by depth": " · ".join(map(str, report.accepted_by_depth)),
        "bias": "" if report.bias is None else str(report.bias),
        "time": " · ".join(f"{phase} {spent:.2f} s" for phase, spent in report.seconds.items()),
        "equality": report.shape,
        "linear layers": report.products,
        "caches": "" if report.cache_bytes is None else f"{report.cache_bytes:,} bytes of {report.memory_bytes:,}",
        "faults": str(report.faults or ""),
    }
    rows = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in lines.items() if text)
    return f"<table>{rows}</table>{'' if report.trace is None else report.trace._repr_html_()}"


def summed(reports: Sequence[Any]) -> dict[str, Any]:
    """The attributes of a report of several calls, at least one.

    Counts and times are summed. What is no count is kept if all calls have it: of methods the names, of promises the
    weakest; of bytes the most.
    """
    widths = {report.width for report in reports}
    seconds = Counter[str]()
    for report in reports:
        seconds.update(report.seconds)
    read = [report.prompts for report in reports]
    return {
        "method": _joined(report.method for report in reports),
        "exactness": max((report.exactness for report in reports), key=EXACTNESS.index),
        "wrt": _joined(report.wrt for report in reports),
        "k": max(report.k for report in reports),
        "k_from": _joined(report.k_from for report in reports),
        "rounds": sum(report.rounds for report in reports),
        "row_rounds": sum(report.row_rounds for report in reports),
        "inner_passes": sum(report.inner_passes for report in reports),
        "emitted": sum(report.emitted for report in reports),
        "rows": sum(report.rows for report in reports),
        "prompts": sum(r.prompts or r.rows for r in reports) if any(read) else None,
        "cache_bytes": _most(report.cache_bytes for report in reports),
        "memory_bytes": _most(report.memory_bytes for report in reports),
        "sizes": sum((report.sizes for report in reports), Counter[int]()),
        "seconds": dict(seconds),
        "faults": sum(report.faults for report in reports),
        "repeatable": all(report.repeatable for report in reports),
        "timed": _joined(report.timed for report in reports),
        "products": _joined(report.products for report in reports),
        "width": widths.pop() if len(widths) == 1 else None,
        "compiled": all(report.compiled for report in reports),
        "recorded": all(report.recorded for report in reports),
        "rounded": any(report.rounded for report in reports),
        "half": any(report.half for report in reports),
    }


def _most(counts: Iterable[int | None]) -> int | None:
    return max((count for count in counts if count is not None), default=None)


def _joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(word for word in words if word))
