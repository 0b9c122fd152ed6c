"""The result of all runs of a script: a finding for every call, seconds, and the exit code."""

import statistics
from dataclasses import dataclass

from mmspec.compare import findings
from mmspec.compare.children import Runs
from mmspec.compare.findings import Finding
from mmspec.compare.recording import RecordedCall, Recording

EQUAL, WRONG, NOTHING, NEAR_TIES, LEFT_ALONE = 0, 1, 2, 3, 4


@dataclass(frozen=True)
class ComparedCall:
    """One call, in all runs."""

    plain: RecordedCall  # the call without mmspec
    ours: RecordedCall | None  # the call with mmspec; None if the script did not make it
    shape: str  # rows and new tokens of the plain run
    plain_s: float  # median seconds without mmspec
    ours_s: float  # median seconds with mmspec
    finding: Finding  # whether the ids are equal

    @property
    def counts(self) -> bool:
        """True if mmspec decoded it."""
        return self.ours is not None and not self.ours.left_alone and not self.ours.raised


@dataclass(frozen=True)
class Comparison:
    """A script with and without mmspec."""

    calls: list[ComparedCall]  # every call of the plain run
    stdout: Finding  # the finding for what the script printed

    @property
    def decoded(self) -> list[ComparedCall]:
        """Calls that mmspec decoded."""
        return [call for call in self.calls if call.counts]

    @property
    def half(self) -> bool:
        """True if mmspec decoded a call of a model in half precision without one shape, equal or not."""
        return any(call.ours.half and not call.ours.width for call in self.decoded if call.ours)

    @property
    def widths(self) -> list[int]:
        """Nodes of every pass, of the calls that ran under one shape; each number once."""
        return sorted({call.ours.width for call in self.decoded if call.ours and call.ours.width})

    @property
    def acceptance_length(self) -> float:
        """Units emitted per row and target pass after prefill, over the calls that mmspec decoded."""
        calls = [call.ours for call in self.decoded if call.ours is not None]
        passes = sum(call.passes for call in calls)
        return sum(call.emitted for call in calls) / passes if passes else 0.0

    @property
    def code(self) -> int:
        """Exit code; `mmspec verify --help` says what each means."""
        kinds = {call.finding.kind for call in self.calls} | {self.stdout.kind}
        if kinds & {"wrong", "not supported"}:
            return WRONG
        if kinds & {"unsteady", "half"} or not self.decoded:
            return NOTHING
        if kinds & {"near-tie", "follows"}:
            return NEAR_TIES
        return LEFT_ALONE if "left alone" in kinds else EQUAL

    def tally(self) -> str:
        """The number of calls of each kind, in a line."""
        kinds = [call.finding.kind for call in self.calls]
        counts = {name: kinds.count(name) for name in ("same", "not supported", "left alone")}
        differ = len(kinds) - sum(counts.values())
        return (
            f"{counts['same']} calls equal, {differ} differ, {counts['not supported']} not supported"
            f"{self._reasons('not supported')}, {counts['left alone']} left alone{self._reasons('left alone')}"
        )

    def _reasons(self, kind: str) -> str:
        """Every reason once, so that the last line can be read alone."""
        texts = dict.fromkeys(call.finding.text for call in self.calls if call.finding.kind == kind)
        return f" ({'; '.join(texts)})" if texts else ""

    @property
    def timed(self) -> list[ComparedCall]:
        """Calls that mmspec decoded and that say something about speed: in its first call a model warms up."""
        return [call for call in self.decoded if not call.plain.first]

    def speedup(self) -> float | None:
        """Seconds without mmspec / with it, over the calls of `timed`; None if there are none."""
        calls = self.timed
        return sum(call.plain_s for call in calls) / sum(call.ours_s for call in calls) if calls else None


def compare(runs: Runs) -> Comparison:
    """Compare all runs of a script."""
    plain, ours = runs.plain[0], runs.different
    found = findings.of_calls(plain, ours, runs.again)
    extra = len(ours.calls) - len(plain.calls)
    differs = findings.any_differs(found)
    calls = [_compared(runs, plain, ours, number, finding) for number, finding in enumerate(found, 1)]
    stdout = findings.of_stdout(plain, ours, runs.again, differs or extra > 0)
    if extra > 0 and not differs:
        stdout = Finding("wrong", f"{extra} generate calls more with mmspec")
    return Comparison(calls, stdout)


def _compared(runs: Runs, plain: Recording, ours: Recording, number: int, finding: Finding) -> ComparedCall:
    one = plain.calls[number - 1]
    other = ours.calls[number - 1] if number <= len(ours.calls) else None
    ids = plain.ids.get(number)
    shape = "" if ids is None else f"{len(ids)} × {ids.shape[1] - one.prompt}"
    return ComparedCall(one, other, shape, _seconds(runs.plain, number), _seconds(runs.ours, number), finding)


def _seconds(runs: list[Recording], number: int) -> float:
    return statistics.median([run.calls[number - 1].seconds for run in runs if number <= len(run.calls)] or [0.0])
