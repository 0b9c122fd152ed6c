"""Shapes: models of published sizes with random weights, which are as fast as the published ones.

Plugins list their shapes in the hook `mmspec_bench_shapes`, as data. A shape's module is imported when it is measured.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from mmspec.registry import installed
from mmspec.registry.suggest import unknown

HOOK = "mmspec_bench_shapes"


@dataclass(frozen=True)
class Workload:
    """A live model, and how it is called."""

    model: nn.Module  # the model; some plugin has a target for it
    prompt: Callable[[int, int], Any]  # makes a prompt of so many rows with so many units of context
    slot: int  # numbers that the cache holds per unit of context and row
    units: int = 1  # positions that the network computes per node: 2 under guidance, the cells of a frame, …
    passes: int = 1  # passes of the network per pass of the target: the steps of a denoiser
    # The dtype of the network's products where the weights stay in float32; None: the dtype of the weights
    autocast: torch.dtype | None = None
    # The next units of so many rows, `[row, 1]`, where they come from outside (a player's actions)
    truth: Callable[[int], Tensor] | None = None


@dataclass(frozen=True)
class Shape:
    """A model of a published size."""

    name: str
    make: str  # `module:function`, which makes the workload from a device, a dtype and the numbers
    numbers: Mapping[str, Any]  # arguments of `make`: the configuration of the published size
    small: Mapping[str, Any]  # changes of `numbers` for a stand-in of the same architecture that a CPU runs in seconds
    contexts: tuple[int, ...] | None = None  # units of context; None: as in the benchmark
    nodes: tuple[int, ...] | None = None  # nodes of a pass; None: as in the benchmark
    generates: bool = True  # whether transformers' own `generate` runs the model

    def workload(self, device: torch.device, dtype: torch.dtype, small: bool) -> Workload:
        """The model with random weights, made on the device in the dtype."""
        module, _, name = self.make.partition(":")
        make = getattr(importlib.import_module(module), name)
        return make(device, dtype, **{**self.numbers, **(self.small if small else {})})


def known_shapes() -> dict[str, Shape]:
    """The shapes of all plugins by name, in the order of loading."""
    registry = installed()
    answers: Iterable[Iterable[Shape]] = (
        shapes for plugin in registry.plugins() for shapes in registry.ask(plugin.name, HOOK) or ()
    )
    return {shape.name: shape for shapes in answers for shape in shapes}


def chosen_shapes(names: str | None) -> list[Shape]:
    """The shapes that a user named, joined by commas; None: all."""
    known = known_shapes()
    wanted = list(known) if names is None else names.split(",")
    for name in wanted:
        if name not in known:
            raise ValueError(unknown("shape", name, known))
    return [known[name] for name in wanted]


FIRST = 3
"""The smallest id of a prompt: smaller ones are padding, begin and end of a text."""


def language(device: torch.device, dtype: torch.dtype, *, config: str, **numbers: Any) -> Workload:
    """A causal language model with random weights.

    `config` names a configuration class of transformers, and `numbers` are its arguments.
    """
    settings = getattr(transformers, config)(**numbers, bos_token_id=1, eos_token_id=None, pad_token_id=0)
    torch.manual_seed(0)
    with torch.device(device):
        made = transformers.AutoModelForCausalLM.from_config(settings, dtype=dtype, trust_remote_code=False)
    model = made.eval().requires_grad_(False)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return of_model(model)


def of_model(model: Any) -> Workload:
    """A live causal language model as a workload."""
    config = model.config.get_text_config(decoder=True)

    def prompt(rows: int, context: int) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.randint(FIRST, config.vocab_size, (rows, context), generator=generator).to(model.device)

    return Workload(model, prompt, _slot(config))


def _slot(config: Any) -> int:
    """Keys and values of one unit over all layers; a recurrent state does not grow with the context."""
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return 0
    kinds = getattr(config, "layer_types", None) or ["attention"] * config.num_hidden_layers
    layers = sum("attention" in kind and "linear" not in kind for kind in kinds)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * layers * (getattr(config, "num_key_value_heads", None) or heads) * width)
