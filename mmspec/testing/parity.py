"""Parity with official implementations, on small fixtures that hold a state, inputs, and the outputs they gave.

A fixture is a safetensors file named after its architecture: tensors `state.<official key>` and `io.<name>`, the
constructor's configuration as JSON in the metadata key `config`. Integer states are weights in steps of 0.02. A plugin
says how its architectures run in a module `parity` beside its manifest: `ARCHITECTURES`, by file stem.
"""

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

TOLERANCE = 1e-4
STEP = 0.02

#: From state, inputs and configuration to outputs, under the names that the fixture has for them.
Runner = Callable[[dict[str, Tensor], dict[str, Tensor], dict[str, Any]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Agreement:
    """One output of one fixture.

    Attributes:
        architecture: The fixture's stem.
        output: The output's name; "" for a fixture that was skipped or could not be run.
        error: max |a - b| / max |b|; of integers, the share that differs.
        note: Why it was skipped, or failed.
    """

    architecture: str
    output: str
    error: float = 0.0
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether it agrees; skipped fixtures are no failure."""
        return self.error <= TOLERANCE


def compare(folder: Path) -> Iterator[Agreement]:
    """Every output of every fixture in a folder.

    Raises:
        ValueError: There is no such folder, or no fixture in it.
    """
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not files:
        raise ValueError(f"there are no *.safetensors fixtures in {folder}")
    known = architectures()
    for file in files:
        if file.stem in known:
            yield from compared(file, known[file.stem])
        else:
            yield Agreement(file.stem, "", note="skipped: no installed plugin has this architecture")


def compared(file: Path, run: Runner) -> Iterator[Agreement]:
    """Every output of one fixture."""
    try:
        state, io, config = read(file)
        with torch.no_grad():
            made = run(state, io, config)
    except (ValueError, KeyError, RuntimeError, SafetensorError) as error:
        yield Agreement(file.stem, "", float("inf"), f"{type(error).__name__}: {error}".splitlines()[0])
        return
    for name, ours in made.items():
        yield Agreement(file.stem, name, distance(ours, io[name]))


def read(file: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """State, inputs and outputs, configuration."""
    with safe_open(file, "pt") as held:
        tensors = {key: held.get_tensor(key) for key in held.keys()}  # noqa: SIM118
        config = json.loads((held.metadata() or {}).get("config", "{}"))
    state, io = (_under(kind, tensors) for kind in ("state.", "io."))
    return {key: t * STEP if t.dtype == torch.int8 else t for key, t in state.items()}, io, config


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


def distance(ours: Tensor, theirs: Tensor) -> float:
    """max |a - b| / max |b|; of integers the share that differs; infinite where shapes differ."""
    if ours.shape != theirs.shape:
        return float("inf")
    if not theirs.is_floating_point():
        return float((ours != theirs).float().mean())
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=torch.finfo(theirs.dtype).tiny))


def architectures() -> dict[str, Runner]:
    """What the installed plugins can run, by stem."""
    from mmspec.registry import installed

    found: dict[str, Runner] = {}
    for plugin in installed().plugins():
        package = plugin.module.rpartition(".")[0]
        if plugin.status == "ok" and package and find_spec(f"{package}.parity"):
            found |= importlib.import_module(f"{package}.parity").ARCHITECTURES
    return found
