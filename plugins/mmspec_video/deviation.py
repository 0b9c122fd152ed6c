"""What a lossy method did to frames: how many are not plain's, and how far off, as far as the method can tell."""

from dataclasses import dataclass

from torch import Tensor

from mmspec.core.report import Report


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Root mean square of the difference of frames `[row, …]`: `[row]`, in units of a latent frame's spread."""
    return (a - b).flatten(1).square().mean(1).sqrt()


@dataclass
class Deviation:
    """Of one call; frames that were made and discarded count, too.

    Attributes:
        what: What is said of frames that are not plain's.
        off: What is said of their distances, which are the method's own: see its rule.
        made: Frames that were made.
        altered: Those that are not plain's.
        measured: Those of them whose distance was measured.
        total: The sum of these distances.
        largest: The largest of them.
    """

    what: str
    off: str
    made: int = 0
    altered: int = 0
    measured: int = 0
    total: float = 0.0
    largest: float = 0.0

    def count(self, made: Tensor, altered: Tensor, distances: Tensor | None = None) -> None:
        """Add frames: two masks `[row, n]`, `altered` within `made`; and distances `[row · n]` of all, if measured."""
        self.made += int(made.sum())
        self.altered += int(altered.sum())
        if distances is not None:
            self.measure(distances[altered.flatten()])

    def measure(self, distances: Tensor) -> None:
        """Add distances `[n]`."""
        if len(distances):
            self.measured += len(distances)
            self.total += float(distances.sum())
            self.largest = max(self.largest, float(distances.max()))

    @property
    def mean(self) -> float | None:
        """Mean distance of an altered frame; None where none was measured."""
        return self.total / self.measured if self.measured else None

    def __str__(self) -> str:
        off = f", {self.off} {self.mean:.4f}, at most {self.largest:.4f}" if self.measured else ""
        unknown = " (not measured how far off)" if self.altered and not self.measured else ""
        return f"{self.altered} of {self.made} frames {self.what}{off}{unknown}"


@dataclass
class FrameReport(Report):
    """A report of frames.

    Attributes:
        deviation: Of a lossy method; None where the method is exact.
    """

    deviation: Deviation | None = None

    def __str__(self) -> str:
        told = super().__str__()
        return told if self.deviation is None else f"{told}; {self.deviation}"
