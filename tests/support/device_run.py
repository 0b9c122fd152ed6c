"""Runs methods on the CPU and on the logical device: `python -m tests.support.device_run [group or case …]`.

After `--without-float64` the device has none.

One line of JSON for every case: whether the outputs are equal, the drafter's faults, the accepted units on either, and
for every round how often the host waited and how many kernels were launched outside of models. A process of its own, as
the logical device changes torch.
"""

from tests.support import logical_device as logical  # isort: skip # before the library, whose functions it replaces

import gc
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core import transfer
from tests.support.device_cases import Runnable, images, recurrent, text
from tests.support.device_latents import codes, continuous, frames

GROUPS: Mapping[str, Callable[[], dict[str, Runnable]]] = {
    "text": text,
    "images": images,
    "recurrent": recurrent,
    "continuous": continuous,
    "codes": codes,
    "frames": frames,
}
"""The cases, by modality."""


def run(case: Runnable, float64: bool = True) -> dict[str, Any]:
    """The figures of a case, on a device with or without float64."""
    expected = case.begin(lambda model: model, lambda inputs: inputs)
    while not expected.finished:
        expected.advance()
    with logical.Meter(float64) as meter:
        call = case.begin(moved, sent)
        waits, launches, places = [], [], dict[str, int]()
        while not call.finished:
            meter.reset()
            call.advance()
            waits.append(meter.waits.total())
            launches.append(meter.launches.total())
            for (what, place), times in meter.waits.items():
                places[f"{what}, {place}"] = max(times, places.get(f"{what}, {place}", 0))
        outputs, accepted = [row.cpu() for row in call.output()], call.report.accepted
    return {
        "same": all(_equal(a, b) for a, b in zip(outputs, expected.output(), strict=True)),
        "faults": call.report.faults + expected.report.faults,
        "accepted": accepted,
        "nodes": list(call.report.sizes.elements()),
        "accepted_on_cpu": expected.report.accepted,
        "waits": waits,
        "launches": launches,
        "places": places,
    }


def _equal(a: Tensor, b: Tensor) -> bool:
    """True if units are equal; latents up to rounding, as packed layers run on the CPU only."""
    return a.shape == b.shape and torch.allclose(a.float(), b.float(), rtol=1e-4, atol=1e-4)


def moved(module: nn.Module) -> nn.Module:
    """A module with its parameters and buffers on the device; its calls, and its parts', count as calls of a model."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and not isinstance(parameter.data, logical.OnDevice):
                part._parameters[name] = nn.Parameter(logical.OnDevice(parameter.data), requires_grad=False)
        for name, buffer in part._buffers.items():
            if buffer is not None and not isinstance(buffer, logical.OnDevice):
                part._buffers[name] = logical.OnDevice(buffer)
        part.register_forward_pre_hook(lambda *_: _entered(1))
        part.register_forward_hook(lambda *_: _entered(-1), always_call=True)
    return module


def sent(inputs: Any) -> Any:
    """The tensors of a dictionary or a dataclass, as copies on the device."""
    if isinstance(inputs, Tensor):
        return logical.OnDevice(inputs.clone())
    if isinstance(inputs, dict):
        return {name: sent(value) for name, value in inputs.items()}
    if is_dataclass(inputs) and not isinstance(inputs, type):
        return replace(inputs, **{each.name: sent(getattr(inputs, each.name)) for each in fields(inputs)})
    return inputs


def _entered(by: int) -> None:
    logical.meter().in_model += by


def main(*wanted: str) -> None:
    """Print the figures of all cases, or of those that are named, by group or one by one."""
    gc.disable()  # looking through all that is imported takes longer than the cases
    torch.manual_seed(0)
    float64 = "--without-float64" not in wanted
    wanted = tuple(name for name in wanted if not name.startswith("--"))
    if not float64:
        transfer._WITHOUT_FLOAT64.add(logical.DEVICE.type)
    for group, cases in GROUPS.items():
        for name, case in cases().items():
            if wanted and name not in wanted and group not in wanted:
                continue
            try:
                figures = run(case, float64)
            except Exception:
                figures = {"error": traceback.format_exc()}
            print(json.dumps({"name": name, **figures}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
