"""Reports as tables keep them: one JSON a call, and the sums of many."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from mmspec.core.report import PHASES, Report

COUNTERS = ("rows", "emitted", "rounds", "row_rounds", "inner_passes", "drafted", "accepted", "faults")
"""Numbers that add up over calls, as in `mmspec.core.report.Report`."""


def as_json(report: Report) -> str:
    """A call's counters, the seconds of its phases, and what the method promises."""
    counters = {name: getattr(report, name) for name in COUNTERS}
    seconds = {name: round(report.seconds[name], 6) for name in PHASES}
    return json.dumps({"method": report.method, "exactness": report.exactness, **counters, "seconds": seconds})


def summed(reports: Iterable[str]) -> dict[str, Any]:
    """The sums of texts of `as_json`, with the acceptance length and the acceptance rate of all calls together."""
    read: list[Mapping[str, Any]] = [json.loads(report) for report in reports]
    total: dict[str, Any] = {name: sum(one[name] for one in read) for name in COUNTERS}
    passes, drafted = total["row_rounds"], total["drafted"]
    return {
        "calls": len(read),
        "methods": sorted({f"{one['method']} ({one['exactness']})" for one in read}),
        **total,
        "acceptance_length": (total["emitted"] - total["rows"]) / passes if passes else 0.0,
        "acceptance_rate": total["accepted"] / drafted if drafted else 0.0,
        "seconds": {name: sum(one["seconds"][name] for one in read) for name in PHASES},
    }
