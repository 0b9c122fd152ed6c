"""Settings and defaults of the benchmark. The command line reads them, so nothing heavy is imported."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from mmspec.bench.methods import own_methods
from mmspec.registry import installed, pair

MODELS = ("mmspec/four-courts", "mmspec/four-courts-tokens")
WINDOWS = (8, 16, 32, 64)
"""Widths of the Jacobi window over frames of codes, in units; methods are tried at each."""
DELAYS = (0, 1, 2)
"""Thinking times of the simulated player, in frame times of plain decoding."""
BRANCHES = 2
"""Branches of drafters that have the option."""
DEPTHS = {"nfd": 3}
"""Depths of methods that are tried deeper than `BenchOptions.ahead`: `nfd` denoises k + 1 frames jointly."""
AHEAD = (1, 4, 16)
"""Distances ahead, in frames, at which frames are compared with the simulator's."""
GIVEN = 4
"""First frames of a task, where the model's window has room for them."""
DENOISED, CODES = "denoised", "codes"
STREAMING, RECOMPUTING = "plain, streaming keys", "recomputing"
REPEATING, RECORDED, ADVERSARIAL = "repeating", "recorded", "adversarial"
Ways = dict[str, dict[str, Any]]
"""A method and its options, by the name that results give them."""


@dataclass(frozen=True)
class BenchOptions:
    """How long a benchmark takes."""

    repeats: int = 4  # counted repeats
    clips: int = 2  # clips of a repeat
    frames: int = 24  # most new frames of a clip
    ahead: int = 1  # how many actions ahead frames are made
    seed: int = 0  # seed of the first clip; the others have consecutive seeds
    whole: bool = True  # whether fidelity, memory and limits are measured, beside speed and waits

    @property
    def quick(self) -> "BenchOptions":
        """Options with all methods and players, and fewer and shorter clips."""
        return replace(self, repeats=min(self.repeats, 2), clips=1, frames=min(self.frames, 6), whole=False)


def playing(trace: str, delay: int) -> str:
    """The name of a setting with a player."""
    return f"{DENOISED}, {trace}, d = {delay}"


def methods_for(model: Any) -> tuple[str, ...]:
    """This plugin's methods that fit a model, without plain decoding."""
    return tuple(p.method.name for p in own_methods(model))


def windowed(methods: Iterable[str]) -> Ways:
    """Every method at every window."""
    return {f"{name}, window {k}": {"method": name, "k": k} for name in methods for k in WINDOWS}


def deep(methods: Iterable[str], ahead: int) -> Ways:
    """Every method at its depth; those with the option `branches` once more with branches, `nfd` with the student.

    Args:
        methods: Names of methods.
        ahead: Depth of methods that `DEPTHS` does not list.
    """
    ways: Ways = {}
    for name in methods:
        ways[name] = {"method": name, "k": DEPTHS.get(name, ahead)}
        if name == "nfd":
            ways["nfd, the student"] = ways[name] | {"student": True}
        pairing = pair(installed(), name)
        options = [part.load_options() for part in (pairing.drafter, pairing.rule) if part is not None]
        if any(one is not None and "branches" in {field.name for field in fields(one)} for one in options):
            ways[f"{name}, {BRANCHES} branches"] = ways[name] | {"branches": BRANCHES}
    return ways
