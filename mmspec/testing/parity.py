"""Parity with official implementations, on small fixtures that hold a state, inputs, and the outputs they gave.

A fixture is a safetensors file named after its architecture: tensors `state.<official key>` and `io.<name>`, the
constructor's configuration as JSON in the metadata key `config`. Integer states are weights in steps of 0.02. A plugin
says how its architectures run with the hook `mmspec_parity_runners`, by file stem.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

TOLERANCE = 1e-4
STEP = 0.02

#: Computes outputs, by their names in the fixture, from state, inputs and configuration.
Runner = Callable[[dict[str, Tensor], dict[str, Tensor], dict[str, Any]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Agreement:
    """One output of one fixture."""

    architecture: str  # the name of the fixture's file, without suffix
    output: str  # the output's name; "" for a fixture that was skipped or could not be run
    # max |a - b| / max |b|, or the share of integers that differ; None if nothing could be compared
    error: float | None = None
    note: str = ""  # why the output was skipped or does not agree; "" if it agrees
    skipped: bool = False  # whether no plugin knows the architecture

    @property
    def holds(self) -> bool:
        """True if the output agrees; a skipped fixture is not a failure."""
        return self.skipped or not self.note


def compare(folder: Path) -> Iterator[Agreement]:
    """Every output of every fixture in a folder; refuses one without fixtures."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not files:
        raise ValueError(f"there are no *.safetensors fixtures in {folder}")
    known = architectures()
    for file in files:
        if file.stem in known:
            yield from compared(file, known[file.stem])
        else:
            yield Agreement(file.stem, "", note="skipped: no installed plugin has this architecture", skipped=True)


def compared(file: Path, run: Runner) -> Iterator[Agreement]:
    """Every output of one fixture, and every recorded tensor that was neither an input nor computed."""
    try:
        state, io, config = read(file)
        inputs = _Inputs(io)
        with torch.no_grad():
            outputs = run(state, inputs, config)
    except Exception as error:  # whatever a fixture or a plugin raises, the other fixtures are compared
        yield Agreement(file.stem, "", note=f"{type(error).__name__}: {error}".splitlines()[0])
        return
    for name, ours in outputs.items():
        yield _agreement(file.stem, name, ours, io.get(name))
    for name in sorted(io.keys() - outputs.keys() - inputs.read):
        yield Agreement(file.stem, name, note="recorded in the fixture, but nothing computes it")


def _agreement(architecture: str, name: str, ours: Tensor, theirs: Tensor | None) -> Agreement:
    if theirs is None:
        return Agreement(architecture, name, note="not in the fixture")
    if ours.shape != theirs.shape:
        return Agreement(architecture, name, note=f"shape {list(ours.shape)}, not {list(theirs.shape)}")
    error = distance(ours, theirs)
    if not isfinite(error):
        return Agreement(architecture, name, note="not finite")
    if theirs.is_floating_point():
        return Agreement(architecture, name, error, f"more than {TOLERANCE:.0e}" if error > TOLERANCE else "")
    return Agreement(architecture, name, error, "integers must be equal" if error else "")


class _Inputs(dict[str, Tensor]):
    """The tensors of a fixture, and the names of those that were read."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        self.read.add(name)
        return super().__getitem__(name)


def read(file: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """State, inputs and outputs, configuration."""
    with safe_open(file, "pt") as opened:
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        config = json.loads((opened.metadata() or {}).get("config", "{}"))
    state, io = (_with_prefix(kind, tensors) for kind in ("state.", "io."))
    return {key: t * STEP if t.dtype == torch.int8 else t for key, t in state.items()}, io, config


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


def distance(ours: Tensor, theirs: Tensor) -> float:
    """max |a - b| / max |b| of tensors of one shape; the share that differs if they are integers."""
    if not theirs.is_floating_point():
        return float((ours != theirs).float().mean())
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=torch.finfo(theirs.dtype).tiny))


def architectures() -> dict[str, Runner]:
    """The architectures that installed plugins can run, by the name of their fixture."""
    from mmspec.registry import installed

    found: dict[str, Runner] = {}
    registry = installed()
    for plugin in registry.plugins():
        for runners in registry.ask(plugin.name, "mmspec_parity_runners") or ():
            found |= runners
    return found
