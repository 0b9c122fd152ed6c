"""Frames that a lossy method altered: how many differ from plain decoding's, and by which distance, where measured."""

from dataclasses import dataclass

from torch import Tensor

from mmspec.core.report import Report


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Root mean square of the difference of frames `[row, …]`: `[row]`, in units of the latents' standard deviation."""
    return (a - b).flatten(1).square().mean(1).sqrt()


@dataclass
class Deviation:
    """Altered frames of one call; discarded frames count, too."""

    what: str  # words for altered frames in reports
    off: str  # words for their distance in reports; each rule defines its own distance
    frames: int = 0  # frames that were made
    altered: int = 0  # frames that are not made as plain decoding makes them
    measured: int = 0  # altered frames whose distance was measured
    total: float = 0.0  # sum of the measured distances
    largest: float = 0.0  # largest measured distance

    def count(self, new: Tensor, altered: Tensor, distances: Tensor | None = None) -> None:
        """Add new frames `[row, n]` bool, the altered ones among them, and, if measured, the distances `[row · n]`."""
        self.frames += int(new.sum())
        self.altered += int(altered.sum())
        if distances is not None:
            self.measure(distances[altered.flatten()])

    def measure(self, distances: Tensor) -> None:
        if len(distances):
            self.measured += len(distances)
            self.total += float(distances.sum())
            self.largest = max(self.largest, float(distances.max()))

    @property
    def mean(self) -> float | None:
        """Mean distance of the measured frames; None where none was measured."""
        return self.total / self.measured if self.measured else None

    def __str__(self) -> str:
        off = f", {self.off} {self.mean:.4f}, at most {self.largest:.4f}" if self.measured else ""
        unknown = " (not measured how far off)" if self.altered and not self.measured else ""
        return f"{self.altered} of {self.frames} frames {self.what}{off}{unknown}"


@dataclass
class FrameReport(Report):
    deviation: Deviation | None = None  # altered frames of a lossy method; None where the method is exact

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.deviation is None else f"{text}; {self.deviation}"
