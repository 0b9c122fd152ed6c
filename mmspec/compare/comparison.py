"""What the runs say together: outcomes, seconds, and the exit code."""

import statistics
from dataclasses import dataclass

from mmspec.compare import compare
from mmspec.compare.children import Runs
from mmspec.compare.compare import Outcome
from mmspec.compare.recording import Call, Recording

EQUAL, WRONG, NOTHING, NEAR_TIES, LEFT_ALONE = 0, 1, 2, 3, 4


@dataclass(frozen=True)
class Line:
    """One call, in all runs.

    Attributes:
        plain: As transformers ran it.
        ours: As mmspec ran it; None if the script did not come to it.
        shape: Rows and new tokens, of the plain run.
        plain_s: Median seconds without mmspec.
        ours_s: Median seconds with it.
        outcome: Whether the ids are equal.
    """

    plain: Call
    ours: Call | None
    shape: str
    plain_s: float
    ours_s: float
    outcome: Outcome

    @property
    def counts(self) -> bool:
        """Whether mmspec decoded it."""
        return self.ours is not None and not self.ours.left_alone and not self.ours.raised


@dataclass(frozen=True)
class Verdict:
    """Of one script.

    Attributes:
        lines: One for every call.
        printed: What became of the script's stdout.
    """

    lines: list[Line]
    printed: Outcome

    @property
    def speculated(self) -> list[Line]:
        """Calls that mmspec decoded."""
        return [line for line in self.lines if line.counts]

    @property
    def acceptance_length(self) -> float:
        """Units emitted per row and target pass after prefill, over all those calls."""
        calls = [line.ours for line in self.speculated if line.ours is not None]
        passes = sum(call.passes for call in calls)
        return sum(call.emitted for call in calls) / passes if passes else 0.0

    @property
    def code(self) -> int:
        """Exit code: 0 only if every output is equal.

        1: something is wrong, or mmspec cannot do a call that transformers can. 2: nothing can be said: mmspec decoded
        no call, or the script does not repeat itself. 3: ids differ at near-ties only, and where a text had already
        parted at one. That is no fault of a method, since rounding may turn such a decision, but the outputs are not
        equal, so it is not 0 either. 4: all that mmspec decoded is equal, and some calls were left alone.
        """
        kinds = {line.outcome.kind for line in self.lines} | {self.printed.kind}
        if kinds & {"wrong", "not supported"}:
            return WRONG
        if "unsteady" in kinds or not self.speculated:
            return NOTHING
        if kinds & {"near-tie", "follows"}:
            return NEAR_TIES
        return LEFT_ALONE if "left alone" in kinds else EQUAL

    def tally(self) -> str:
        """How many calls there are of each sort, in a line."""
        kinds = [line.outcome.kind for line in self.lines]
        counts = {name: kinds.count(name) for name in ("same", "not supported", "left alone")}
        differ = len(kinds) - sum(counts.values())
        return (
            f"{counts['same']} calls equal, {differ} differ, {counts['not supported']} not supported"
            f"{self._reasons('not supported')}, {counts['left alone']} left alone{self._reasons('left alone')}"
        )

    def _reasons(self, kind: str) -> str:
        """Why, each reason once; a reader of the last line alone shall know."""
        texts = dict.fromkeys(line.outcome.text for line in self.lines if line.outcome.kind == kind)
        return f" ({'; '.join(texts)})" if texts else ""

    def speedup(self, warm: bool = False) -> float | None:
        """Seconds without mmspec / with it, over the calls that it decoded; None if there are none.

        Args:
            warm: Leave out every model's first call.
        """
        lines = [line for line in self.speculated if not (warm and line.plain.first)]
        return sum(line.plain_s for line in lines) / sum(line.ours_s for line in lines) if lines else None


def judge(runs: Runs) -> Verdict:
    """Bring the runs together."""
    plain, ours = runs.plain[0], runs.odd
    found = compare.outcomes(plain, ours, runs.again)
    extra = len(ours.calls) - len(plain.calls)
    parted = extra > 0 or compare.any_parted(found)
    lines = [_line(runs, plain, ours, number, outcome) for number, outcome in enumerate(found, 1)]
    printed = compare.printed(plain, ours, runs.again, parted)
    if extra > 0 and not compare.any_parted(found):
        printed = Outcome("wrong", f"{extra} generate calls more with mmspec")
    return Verdict(lines, printed)


def _line(runs: Runs, plain: Recording, ours: Recording, number: int, outcome: Outcome) -> Line:
    one = plain.calls[number - 1]
    other = ours.calls[number - 1] if number <= len(ours.calls) else None
    ids = plain.ids.get(number)
    shape = "" if ids is None else f"{len(ids)} × {ids.shape[1] - one.prompt}"
    return Line(one, other, shape, _seconds(runs.plain, number), _seconds(runs.ours, number), outcome)


def _seconds(runs: list[Recording], number: int) -> float:
    return statistics.median([run.calls[number - 1].seconds for run in runs if number <= len(run.calls)] or [0.0])
