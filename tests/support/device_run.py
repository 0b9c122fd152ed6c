"""Runs methods on the CPU and on the logical device: `python -m tests.support.device_run [--without-float64] [case …]`.

One line of JSON for every case: whether the outputs are equal, the drafter's faults, and for every round how often the
host waited and how many kernels were launched outside of models. A process of its own, as the logical device changes
torch.
"""

from tests.support import logical_device as logical  # isort: skip # before the library, whose functions it replaces

import copy
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MambaConfig
from transformers.generation import (
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from mmspec.api.build import decoder_for
from mmspec.core import widest
from mmspec.core.decoder import Decoder
from mmspec.core.policies import Confidence
from mmspec.core.warp import Warp
from mmspec.testing import tiny_models
from mmspec_image import example as image
from mmspec_ssm import example as ssm

LIMIT = 10


@dataclass(frozen=True)
class Case:
    """A method on a tiny model.

    Attributes:
        model: The target's model.
        prompt: The inputs of two rows, of several lengths.
        method: The method.
        k: Units to draft.
        options: Its options; models among them are moved, too.
        drafter: A drafter instead of the method's.
        warp: How scores become a distribution.
        policy: How many units are drafted.
    """

    model: nn.Module
    prompt: Any
    method: str
    k: int = 4
    options: dict[str, Any] = field(default_factory=dict)
    drafter: Any = None
    warp: Warp = field(default_factory=lambda: Warp.sampling(0.8, top_k=5))
    policy: Any = "fixed"

    def decoder(self, place: Callable[[nn.Module], nn.Module]) -> Decoder:
        """The decoder over copies of the models."""
        copies = {name: _copied(value, place) for name, value in self.options.items()}
        return decoder_for(
            _copied(self.model, place), self.method, k=self.k, drafter=self.drafter, policy=self.policy, options=copies
        )


class Allowed:
    """A constraint that tells rows apart: a row may not use its own number."""

    speculative = "history"

    def __call__(self, row: int, ids: Tensor) -> list[int]:
        """The ids that may follow."""
        return [each for each in range(tiny_models.VOCAB) if each != row]


class Repeats:
    """A drafter in plain Python: the text goes on as it began."""

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        """The first units of every row."""
        return [row[: k - b] for b, row in enumerate(tokens)]


def text() -> dict[str, Case]:
    """The methods of the text plugin, and history processors."""
    llama, small, prompt = tiny_models.llama(), tiny_models.small(), tiny_models.prompt([0, 1])
    methods: dict[str, dict[str, Any]] = {
        "auto": {},
        "plain": {},
        "prompt-lookup": {},
        "suffix": {},
        "token-recycling": {},
        "draft-model": {"model": small},
        "draft-tree": {"model": small, "nodes": 8},
        "rsd": {"model": small},
        "cascade": {"budget": 16, "sinks": 2},
    }
    cases = {name: Case(llama, prompt, name, options=options) for name, options in methods.items()}
    cases["draft-model, confidence"] = Case(
        llama, prompt, "draft-model", options={"model": small}, policy=Confidence(4, 0.3)
    )
    cases["a drafter in Python"] = Case(llama, prompt, "auto", drafter=Repeats())
    history = Warp([RepetitionPenaltyLogitsProcessor(1.3), NoRepeatNGramLogitsProcessor(3)])
    allowed = PrefixConstrainedLogitsProcessor(Allowed(), 1)
    cases["token-recycling, a constraint"] = Case(llama, prompt, "token-recycling", warp=Warp([allowed]))
    for name in ("prompt-lookup", "token-recycling", "auto"):
        cases[f"{name}, history processors"] = Case(llama, prompt, name, warp=history)
    return cases


def images() -> dict[str, Case]:
    """The methods of the image plugin on LlamaGen, and one on Janus."""
    models = {"llamagen": image.llamagen(), "janus": image.janus()}
    warp = Warp.sampling(1.0, top_k=5, guidance=2.0)
    methods = [("llamagen", name) for name in ("plain", "gs-sjd", "mc-sjd", "sjd", "gsd", "lantern")]
    return {
        f"{method}, {name}": Case(models[name].target.model, models[name].prompt([0, 1]), method, warp=warp)
        for name, method in [*methods, ("janus", "gs-sjd")]
    }


def recurrent() -> dict[str, Case]:
    """Methods on a hybrid with a Mamba-2 layer, and on a Mamba-1."""
    sizes = dict(vocab_size=tiny_models.VOCAB, hidden_size=16, state_size=4, num_hidden_layers=2, conv_kernel=3)
    mamba = tiny_models.random_model(MambaConfig(**sizes, pad_token_id=0, eos_token_id=None), gain=4.0, head=8.0)
    models = {"bamba": ssm.hybrid().target.model, "mamba": mamba}
    small, prompt = tiny_models.small(), tiny_models.prompt([0, 1])
    methods: dict[str, dict[str, Any]] = {
        "plain": {},
        "prompt-lookup": {},
        "token-recycling": {},
        "stree": {"model": small, "nodes": 7, "rates": (0.6, 0.2)},
    }
    return {
        f"{method}, {name}": Case(model, prompt, method, options=options)
        for name, model in models.items()
        for method, options in methods.items()
    }


def run(case: Case, float64: bool = True) -> dict[str, Any]:
    """The figures of a case, on a device with or without float64."""
    expected = case.decoder(lambda model: model).generate(case.prompt, LIMIT, seed=3, warp=case.warp)
    with logical.Meter(float64) as meter:
        decoder = case.decoder(moved)
        state = decoder.start(sent(case.prompt), LIMIT, seed=3, warp=case.warp)
        waits, launches, places = [], [], dict[str, int]()
        while not state.finished:
            meter.reset()
            decoder.advance(state)
            waits.append(meter.waits.total())
            launches.append(meter.launches.total())
            for (what, place), times in meter.waits.items():
                places[f"{what}, {place}"] = max(times, places.get(f"{what}, {place}", 0))
        units, accepted = [row.tolist() for row in state.output()], state.report.accepted
        nodes = list(state.report.sizes.elements())
    return {
        "same": units == [row.tolist() for row in expected.units],
        "faults": state.report.faults + expected.report.faults,
        "accepted": accepted,
        "nodes": nodes,
        "waits": waits,
        "launches": launches,
        "places": places,
    }


def moved(module: nn.Module) -> nn.Module:
    """A module with its parameters and buffers on the device; its calls count as calls of a model."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and not isinstance(parameter.data, logical.OnDevice):
                part._parameters[name] = nn.Parameter(logical.OnDevice(parameter.data), requires_grad=False)
        for name, buffer in part._buffers.items():
            if buffer is not None and not isinstance(buffer, logical.OnDevice):
                part._buffers[name] = logical.OnDevice(buffer)
    module.register_forward_pre_hook(lambda *_: _entered(1))
    module.register_forward_hook(lambda *_: _entered(-1), always_call=True)
    return module


def sent(inputs: Any) -> Any:
    """The tensors of a dictionary or a dataclass, as copies on the device."""
    if isinstance(inputs, Tensor):
        return logical.OnDevice(inputs.clone())
    if isinstance(inputs, dict):
        return {name: sent(value) for name, value in inputs.items()}
    if is_dataclass(inputs):
        return replace(inputs, **{each.name: sent(getattr(inputs, each.name)) for each in fields(inputs)})
    return inputs


def _entered(by: int) -> None:
    logical.meter().in_model += by


def _copied(value: Any, place: Callable[[nn.Module], nn.Module]) -> Any:
    return place(copy.deepcopy(value)) if isinstance(value, nn.Module) else value


def main(*names: str) -> None:
    """Print the figures of all cases, or of those named; after `--without-float64`, on a device that has none."""
    torch.manual_seed(0)
    float64 = "--without-float64" not in names
    names = tuple(name for name in names if not name.startswith("--"))
    if not float64:
        widest._WITHOUT_FLOAT64.add(logical.DEVICE.type)
    for name, case in {**text(), **images(), **recurrent()}.items():
        if names and name not in names:
            continue
        try:
            figures = run(case, float64)
        except Exception:
            figures = {"error": traceback.format_exc()}
        print(json.dumps({"name": name, **figures}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
