"""LlamaGen's sampling loop as its repository has it, for a peer.

Keys and values in a cache that grows, guidance in one batch, softmax, a multinomial draw.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from mmspec.models.blocks import visible
from mmspec.pictures.conditions import Condition
from mmspec_image.models.llamagen import LlamaGenTransformer


@torch.inference_mode()
def reference(
    model: LlamaGenTransformer,
    condition: Condition,
    guidance: float,
    temperature: float,
    generator: torch.Generator,
) -> Tensor:
    """Codes `[batch, cells]`.

    Args:
        model: The transformer.
        condition: What is drawn, and what guidance leads away from.
        guidance: Scale; read where `condition.guided`.
        temperature: Of sampling.
        generator: Of the draws.
    """
    given, mask = _read(model, condition)
    halves = 2 if condition.guided else 1
    layers = [DynamicLayer() for _ in model.layers]
    length = given.shape[1]
    x, position = given, torch.arange(length, device=given.device)[None]
    seen = visible(len(x), length, length, mask, x.device)
    codes: list[Tensor] = []
    while True:
        logits = model.logits(model.run(x, position, seen, layers)[:, -1:])[:, 0]
        if condition.guided:
            with_it, without = logits.chunk(2)
            logits = without + guidance * (with_it - without)
        codes.append(torch.multinomial(F.softmax(logits / temperature, -1), 1, generator=generator))
        if len(codes) == model.cells:
            return torch.cat(codes, 1)
        x = model.embed(codes[-1].repeat(halves, 1))
        position = torch.full((1, 1), length + len(codes) - 1, device=x.device)
        seen = None if mask is None else F.pad(mask, (0, len(codes)), value=True)[:, None, None]


def _read(model: LlamaGenTransformer, condition: Condition) -> tuple[Tensor, Tensor | None]:
    """Embedded conditions `[row, caption, dim]` and which positions are no padding, the unconditional half behind."""
    given, mask = model.cls_embedding(condition.given), condition.mask
    if condition.guided:
        null = model.cls_embedding.null(len(given)) if condition.null is None else condition.null
        given = torch.cat([given, model.cls_embedding(null)])
        if mask is not None:
            mask = torch.cat([mask, mask if condition.null_mask is None else condition.null_mask])
    return given, None if mask is None else mask.bool()
