"""Plain sampling loops over LlamaGen's weights in torch, as LlamaGen's repository samples; contestants of ours.

Guidance in one batch, softmax, a multinomial draw. In LlamaGen's code a call allocates keys and values of full length
and a causal mask over all positions; a step writes its keys by index and reads its row of the mask. The loop with a
static cache does the same. Its steps have one shape, which `torch.compile` needs. The other loop's cache grows.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from mmspec.bench.race import Run
from mmspec.bench.timing import synchronize
from mmspec.core.compile.launch import FROZEN, freezing
from mmspec.core.frozen import freezable
from mmspec.kits.pictures.conditions import Condition
from mmspec.kits.pictures.models.blocks import TransformerBlock, visible
from mmspec.kits.pictures.raster import embedded
from mmspec_image.models.llamagen import LlamaGenTransformer
from tools.bench.pictures.subject import Setting
from tools.bench.pictures.tasks import Task

Step = Callable[[LlamaGenTransformer, Tensor, Tensor, Tensor | None, Sequence[Any]], Tensor]


@dataclass
class StaticLayer:
    """The cache of a layer at full length, written in place."""

    keys: Tensor  # `[row, head, slot, width]`
    values: Tensor  # as `keys`
    at: Tensor  # `[n]`: the slots that the next pass writes

    def update(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values of a pass; returns all slots."""
        return self.keys.index_copy_(2, self.at, key_states), self.values.index_copy_(2, self.at, value_states)


def step(model: LlamaGenTransformer, x: Tensor, position: Tensor, seen: Tensor | None, layers: Sequence[Any]) -> Tensor:
    """Scores `[row, code]` after the last of the embedded positions."""
    return model.logits(model.run(x, position, seen, layers)[:, -1:])[:, 0]


@cache
def compiled_step() -> Step:
    """The step, compiled once for all calls with the options of our own rounds; only a static cache keeps its shape."""

    def one(model: LlamaGenTransformer, x: Tensor, position: Tensor, seen: Tensor | None, layers: Any) -> Tensor:
        return step(model, x, position, seen, [StaticLayer(keys, values, position[0]) for keys, values in layers])

    compiled: Any = torch.compile(one, dynamic=False, options=FROZEN)

    def run(model: LlamaGenTransformer, x: Tensor, position: Tensor, seen: Tensor | None, layers: Any) -> Tensor:
        with freezing(freezable(model)):
            scores: Tensor = compiled(model, x, position, seen, [(layer.keys, layer.values) for layer in layers])
        return scores

    return run


@torch.inference_mode()
def plain_loop(
    model: LlamaGenTransformer,
    condition: Condition,
    guidance: float,
    temperature: float,
    generator: torch.Generator,
    *,
    static: bool,
    then: Step = step,
) -> Tensor:
    """Codes `[batch, cells]`.

    Args:
        model: The transformer.
        condition: The condition, and the null condition.
        guidance: Scale of guidance; read where `condition.guided`.
        temperature: Sampling temperature.
        generator: Random numbers of the draws.
        static: Whether the cache has its full length from the start.
        then: Runs the steps after the first one.
    """
    given, mask = embedded(model, condition)
    mask = None if mask is None else mask.bool()
    length, halves = given.shape[1], 2 if condition.guided else 1
    total = length + model.cells - 1  # the last code is not read
    seen = visible(len(given), total, length, mask, given.device)
    position = torch.arange(length, device=given.device)[None]
    layers = _slots(model, given, total, position[0]) if static else [DynamicLayer() for _ in model.layers]
    logits = step(model, given, position, seen[:, :, :length, : total if static else length], layers)
    codes: list[Tensor] = []
    position = position[:, -1:]
    while True:
        if condition.guided:
            with_it, without = logits.chunk(2)
            logits = without + guidance * (with_it - without)
        codes.append(torch.multinomial(F.softmax(logits / temperature, -1), 1, generator=generator))
        if len(codes) == model.cells:
            return torch.cat(codes, 1)
        position = position + 1
        if static:
            rows: Tensor | None = seen.index_select(2, position[0])
            for layer in layers:
                layer.at = position[0]
        else:
            slots = length + len(codes)
            rows = None if mask is None else seen[:, :, slots - 1 : slots, :slots]
        logits = then(model, model.embed(codes[-1].repeat(halves, 1)), position, rows, layers)


def _slots(model: LlamaGenTransformer, given: Tensor, total: int, at: Tensor) -> list[StaticLayer]:
    layers = []
    for layer in model.layers:
        assert isinstance(layer, TransformerBlock)
        shape = (len(given), layer.attention.kv_heads, total, layer.attention.width)
        layers.append(StaticLayer(given.new_zeros(shape), given.new_zeros(shape), at))
    return layers


LOOPS = {
    "loop with a growing cache": (False, False, "keys in a cache that grows"),
    "loop with a static cache, as LlamaGen's code does": (
        True,
        False,
        "keys in a cache of full length under a mask, both allocated once a call and read by index",
    ),
    "loop with a static cache, compiled": (True, True, "the same, its steps compiled by torch"),
}
"""Whether each loop has a static cache, whether it is compiled, and what is special about it."""


@dataclass(frozen=True)
class Loop:
    """A plain loop."""

    model: LlamaGenTransformer
    setting: Setting  # how codes are drawn
    note: str  # what the loop is, for the reader of the result
    static: bool  # whether the cache has its full length from the start
    compiled: bool  # whether steps are compiled

    def __call__(self, task: Task) -> Run:
        device = str(self.model.device)
        generator = torch.Generator(device).manual_seed(task.seeds[0])
        then = compiled_step() if self.compiled else step
        guidance, temperature = self.setting.guidance, self.setting.temperature
        assert temperature is not None
        synchronize(device)
        began = time.perf_counter()
        codes = plain_loop(self.model, task.condition, guidance, temperature, generator, static=self.static, then=then)
        synchronize(device)
        return Run(time.perf_counter() - began, list(codes.cpu()))


def loops(model: LlamaGenTransformer, setting: Setting) -> dict[str, Loop]:
    """All plain loops, by name."""
    note = "a plain loop of ours over the same weights: "
    return {name: Loop(model, setting, note + what, *how) for name, (*how, what) in LOOPS.items()}
