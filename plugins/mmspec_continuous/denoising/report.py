"""Counts of a pipeline call that speculates."""

from dataclasses import dataclass

from mmspec.core.report import Report


@dataclass
class DenoisingReport(Report):
    """A report whose units are denoising steps and whose passes are network calls.

    `acceptance_length` is steps per network pass of a row, after the first; guidance is part of a pass.

    Attributes:
        steps: Denoising steps of the call.
        calls: Network calls, one after another, the first included.
    """

    steps: int = 0
    calls: int = 0

    @property
    def saved(self) -> int:
        """Network calls that plain denoising would have made in addition."""
        return self.steps - self.calls

    def __str__(self) -> str:
        return (
            f"{self.method} ({self.exactness}): {self.steps} steps in {self.calls} network calls, {self.saved} saved; "
            f"acceptance length {self.acceptance_length:.2f}, acceptance rate {self.acceptance_rate:.2f}; "
            f"draft {self.seconds['draft']:.2f} s, network {self.seconds['verify']:.2f} s"
        )
