"""What the conformance kit tries the image components on: a tiny LlamaGen with random weights."""

from collections.abc import Sequence
from functools import cache

import torch

from mmspec.testing.conformance.example import Example
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.rules.grouped import GroupedOptions
from mmspec_image.targets.llamagen import Condition, LlamaGenTarget

CLASSES = 5


@cache
def _tiny() -> LlamaGenTransformer:
    """6 codes on 8 × 8 cells; weights large enough that codes depend on what stands before them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = LlamaGenTransformer(6, 8, dim=32, n_layer=2, n_head=4, multiple_of=16, num_classes=CLASSES)
        for weights in model.parameters():
            weights.data.copy_(torch.randn_like(weights) * (0.4 if weights.dim() > 1 else 1.0))
    return model.eval()


def llamagen() -> Example:
    """Classes as prompts."""

    def prompt(rows: Sequence[int]) -> Condition:
        return Condition(torch.tensor([row % CLASSES for row in rows]), guided=False)

    return Example(target=LlamaGenTarget(_tiny()), prompt=prompt)


def grouped() -> Example:
    """Groups wide enough to alter something on a codebook of random vectors."""
    return Example(options=GroupedOptions(size=4, difference=1.0, distance=1e9), strict={"size": 1})
