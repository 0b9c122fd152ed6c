"""A plain sampling loop over LlamaGen's weights, in the manner of its repository, as anybody would write it in torch.

Guidance in one batch, softmax, a multinomial draw. Keys and values lie in a cache that grows, or in one of full length,
masked: only the second has steps of one shape, which `torch.compile` wants.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from mmspec.kits.pictures.conditions import Condition
from mmspec.kits.pictures.models.blocks import visible
from mmspec_image.models.llamagen import LlamaGenTransformer

Step = Callable[[LlamaGenTransformer, Tensor, Tensor, Tensor | None, Sequence[Any]], Tensor]


@dataclass
class Slots:
    """A layer's keys and values at full length, in place.

    Attributes:
        keys: `[row, head, slot, width]`.
        values: The same.
        at: `[n]`: where what comes next is written.
    """

    keys: Tensor
    values: Tensor
    at: Tensor

    def update(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """Write those of a pass; all slots come back."""
        return self.keys.index_copy_(2, self.at, key_states), self.values.index_copy_(2, self.at, value_states)


def step(model: LlamaGenTransformer, x: Tensor, position: Tensor, seen: Tensor | None, layers: Sequence[Any]) -> Tensor:
    """Scores `[row, code]` after the last of the embedded positions."""
    return model.logits(model.run(x, position, seen, layers)[:, -1:])[:, 0]


@cache
def compiled_step() -> Step:
    """The step, compiled once for all calls; only a static cache keeps its shape."""

    def one(model: LlamaGenTransformer, x: Tensor, position: Tensor, seen: Tensor | None, layers: Any) -> Tensor:
        return step(model, x, position, seen, [Slots(*parts, position[0]) for parts in layers])

    made: Any = torch.compile(one, dynamic=False)
    return lambda model, x, position, seen, layers: made(
        model, x, position, seen, [(layer.keys, layer.values) for layer in layers]
    )


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
        condition: What is drawn, and what guidance leads away from.
        guidance: Scale; read where `condition.guided`.
        temperature: Of sampling.
        generator: Of the draws.
        static: Whether the cache has its full length from the start.
        then: How codes behind the condition are read.
    """
    given, mask = _read(model, condition)
    length, halves = given.shape[1], 2 if condition.guided else 1
    total = length + model.cells - 1  # nothing is read behind the last code
    position = torch.arange(length, device=given.device)[None]
    layers = _slots(model, given, total, position[0]) if static else [DynamicLayer() for _ in model.layers]
    held = torch.ones(len(given), length, dtype=torch.bool, device=given.device) if mask is None else mask
    held = F.pad(held, (0, total - length), value=True)
    seen = visible(len(given), length, length, mask, given.device)
    logits = step(model, given, position, F.pad(seen, (0, total - length)) if static else seen, layers)
    codes: list[Tensor] = []
    while True:
        if condition.guided:
            with_it, without = logits.chunk(2)
            logits = without + guidance * (with_it - without)
        codes.append(torch.multinomial(F.softmax(logits / temperature, -1), 1, generator=generator))
        if len(codes) == model.cells:
            return torch.cat(codes, 1)
        position = torch.full((1, 1), length + len(codes) - 1, device=given.device)
        if static:
            before = torch.arange(total, device=given.device) <= position
            rows: Tensor | None = (held & before)[:, None, None]
            for layer in layers:
                layer.at = position[0]
        else:
            rows = None if mask is None else held[:, None, None, : length + len(codes)]
        logits = then(model, model.embed(codes[-1].repeat(halves, 1)), position, rows, layers)


def _slots(model: LlamaGenTransformer, given: Tensor, total: int, at: Tensor) -> list[Slots]:
    made = []
    for layer in model.layers:
        shape = (len(given), layer.attention.kv_heads, total, layer.attention.width)
        made.append(Slots(given.new_zeros(shape), given.new_zeros(shape), at))
    return made


def _read(model: LlamaGenTransformer, condition: Condition) -> tuple[Tensor, Tensor | None]:
    """Embedded conditions `[row, caption, dim]` and which positions are no padding, the unconditional half behind."""
    given, mask = model.cls_embedding(condition.given), condition.mask
    if condition.guided:
        null = model.cls_embedding.null(len(given)) if condition.null is None else condition.null
        given = torch.cat([given, model.cls_embedding(null)])
        if mask is not None:
            mask = torch.cat([mask, mask if condition.null_mask is None else condition.null_mask])
    return given, None if mask is None else mask.bool()
