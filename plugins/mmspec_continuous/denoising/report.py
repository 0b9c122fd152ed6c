"""Counts of a pipeline call with speculative denoising."""

from dataclasses import dataclass

from mmspec.core.report import Report


@dataclass
class DenoisingReport(Report):
    """A report whose units are denoising steps and whose passes are network calls.

    `acceptance_length` is denoising steps per network call of a row, the first call not counted; the copies that
    guidance needs are part of one call.
    """

    steps: int = 0  # denoising steps of the call
    calls: int = 0  # network calls, one after another, the first included

    @property
    def saved(self) -> int:
        """Network calls that plain denoising would have made in addition."""
        return self.steps - self.calls

    def count_call(self, rows: int) -> None:
        """Count a network call that was made for so many rows."""
        self.calls += 1
        if self.calls > 1:
            self.rounds += 1
            self.row_rounds += rows

    def __str__(self) -> str:
        return (
            f"{self.method} ({self.exactness}): {self.steps} steps in {self.calls} network calls, {self.saved} saved; "
            f"acceptance length {self.acceptance_length:.2f}, acceptance rate {self.acceptance_rate:.2f}; "
            f"draft {self.seconds['draft']:.2f} s, network {self.seconds['verify']:.2f} s"
        )
