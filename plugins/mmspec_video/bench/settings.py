"""What is tried, unless the command line says otherwise; the command line reads it before anything heavy."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from mmspec.bench.methods import own_methods
from mmspec.registry import Pairing, installed, pair

MODELS = ("mmspec/my-way-home", "mmspec/my-way-home-tokens")
WINDOWS = (8, 16, 32, 64)
"""Units of a Jacobi window over frames of codes: so many methods are tried at each."""
DELAYS = (0, 1, 2)
"""How long the simulated player thinks, in seconds of one of plain decoding's frames."""
BRANCHES = 2
"""Guesses side by side, of drafters that can."""
DEPTHS = {"nfd": 3}
"""Of methods that are tried deeper than `BenchOptions.ahead` says: what is denoised together is k + 1 frames."""
AHEAD = (1, 4, 16)
"""How far ahead frames are compared with the simulator's."""
GIVEN = 4
"""First frames of a clip that everybody begins with, where the model sees as many."""
DENOISED, CODES = "denoised", "codes"
STREAMING, RECOMPUTING = "plain, streaming keys", "recomputing"
REPEATING, RECORDED, ADVERSARIAL = "repeating", "recorded", "adversarial"


@dataclass(frozen=True)
class BenchOptions:
    """How long a benchmark takes.

    Attributes:
        repeats: Counted repeats.
        clips: Clips of a repeat.
        frames: New frames of a clip, at most.
        ahead: How many actions deep frames are made ahead of their time.
        seed: Of the first clip; the others count up.
        whole: Whether looks, memory and limits are measured, beside speed and waits.
    """

    repeats: int = 4
    clips: int = 2
    frames: int = 24
    ahead: int = 1
    seed: int = 0
    whole: bool = True

    @property
    def quick(self) -> "BenchOptions":
        """All methods and players on fewer and shorter clips."""
        return replace(self, repeats=min(self.repeats, 2), clips=1, frames=min(self.frames, 6), whole=False)


def playing(trace: str, delay: int) -> str:
    """What a setting is called in which somebody plays."""
    return f"{DENOISED}, {trace}, d = {delay}"


def methods_for(model: Any) -> tuple[str, ...]:
    """Our plugin's methods that fit a model; plain decoding, which all have, left out."""
    return tuple(p.method.name for p in own_methods(model))


def windowed(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Every method at every window, by the name that a result gives it."""
    return {f"{name}, window {k}": {"method": name, "k": k} for name in methods for k in WINDOWS}


def deep(methods: Iterable[str], ahead: int) -> dict[str, dict[str, Any]]:
    """Every method, so many actions deep; those that can try guesses side by side do so once more.

    Args:
        methods: Names.
        ahead: See `BenchOptions`.
    """
    tried: dict[str, dict[str, Any]] = {}
    for name in methods:
        tried[name] = {"method": name, "k": DEPTHS.get(name, ahead)}
        if "branches" in declared(pair(installed(), name)):
            tried[f"{name}, {BRANCHES} branches"] = tried[name] | {"branches": BRANCHES}
    return tried


def declared(pairing: Pairing) -> set[str]:
    """Names of the options that a method's drafter and rule have."""
    parts = [part.load_options() for part in (pairing.drafter, pairing.rule) if part is not None]
    return {field.name for options in parts if options is not None for field in fields(options)}


def given(how: Mapping[str, Any]) -> dict[str, Any]:
    """As `mmspec.api.build.decoder_for` takes it: what is neither method nor `k` is an option."""
    named = {name: how[name] for name in ("method", "k") if name in how}
    return named | {"options": {name: value for name, value in how.items() if name not in named}}


def said(how: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a result shows them: the method has a place of its own."""
    return {name: value for name, value in how.items() if name != "method"}
