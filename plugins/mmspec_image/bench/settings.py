"""What is drawn, and by whom, unless the command line says otherwise."""

from dataclasses import dataclass
from typing import Any

from mmspec.core.warp import Warp
from mmspec.kits.pictures.bench.judge import notes
from mmspec.kits.pictures.bench.options import BenchOptions, tried

WINDOWS = (4, 8, 12, 16, 24, 32, 64)
METHODS = ("gs-sjd", "mc-sjd", "sjd", "gsd", "lantern")
SWEPT = "gs-sjd"
"""The method that is tried at every window; the others at the same one, so that they compare."""
NARROW = 4
"""A window for batches: many rows fill a pass by themselves."""

NOTES = {"same_as_plain": "share of the pictures that are plain decoding's, code by code", **notes("code")}


@dataclass(frozen=True)
class Setting:
    """How codes are drawn.

    Attributes:
        guidance: Scale of classifier-free guidance; 1 is none.
        temperature: Of sampling.
        whole: Whether windows are swept, the oracle runs, memory is measured, and batches are tried.
    """

    guidance: float
    temperature: float = 1.0
    whole: bool = False

    @property
    def name(self) -> str:
        """What it is called in a result."""
        return f"guidance {self.guidance:g}, T = {self.temperature:g}"

    @property
    def guided(self) -> bool:
        """Whether there is an unconditional half."""
        return self.guidance != 1

    @property
    def warp(self) -> Warp:
        """From logits to distributions."""
        return Warp.sampling(self.temperature, guidance=self.guidance if self.guided else None)


SETTINGS = (Setting(2.0, whole=True), Setting(1.0))


def methods_of(chosen: tuple[str, ...], options: BenchOptions, sweep: bool) -> dict[str, dict[str, Any]]:
    """Our contestants beside plain decoding, as `tried` has them; in a sweep, one of them at every window."""
    return tried(chosen, options.window, SWEPT if sweep else None, WINDOWS)
