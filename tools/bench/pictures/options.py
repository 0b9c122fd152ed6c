"""How much a benchmark of pictures does, and which methods it tries; imports nothing heavy."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

PROMPTS = 8
REPEATS = 4
BATCH = 8
WINDOW = 12
QUICK = 2
"""Captions of all repeats under `quick`: one a repeat."""


@dataclass(frozen=True)
class BenchOptions:
    """How long a benchmark takes."""

    prompts: int = PROMPTS  # captions of a repeat
    # Counted repeats; each has captions of its own. Four repeats of eight captions draw all captions.
    repeats: int = REPEATS
    window: int = WINDOW  # units drafted per round
    batch: int = BATCH  # rows of the batch that is compared with its rows alone; 0 leaves it out
    seed: int = 0  # seed of the first picture; the others count up
    floors: int = 3  # sets of pictures that plain decoding draws with other seeds: what chance makes of the numbers
    whole: bool = True  # whether windows are swept, and bounds, memory and limits measured, beside speed and looks

    @property
    def quick(self) -> "BenchOptions":
        """All methods at one window on a few captions, one picture at a time."""
        return replace(self, prompts=1, repeats=QUICK, batch=0, floors=1, whole=False)

    @property
    def drawn(self) -> int:
        """Pictures of every method."""
        return self.prompts * self.repeats


def tried(
    chosen: Iterable[str], window: int, swept: str | None = None, windows: Iterable[int] = ()
) -> dict[str, dict[str, Any]]:
    """Contestants beside plain decoding: a method and its options each, by the name that a result gives them.

    Args:
        chosen: Names of methods.
        window: Units that all of them draft per round.
        swept: The one of `chosen` that is tried at other windows, too; None: no method is.
        windows: The windows for `swept`.
    """
    options: dict[str, dict[str, Any]] = {name: {"method": name, "k": window} for name in chosen}
    if swept in options:
        others = (other for other in windows if other != window)
        options |= {windowed(swept, other): {"method": swept, "k": other} for other in others}
    return options


def windowed(method: str, window: int) -> str:
    """The name of a method at another window than the one that all methods share."""
    return f"{method}, window {window}"


def shown_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a result shows them: without the method, which has a column of its own."""
    return {name: value for name, value in options.items() if name != "method"}
