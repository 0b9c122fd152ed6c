"""Continuous tokens: tiny models with random weights."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from mmspec.testing.conformance.example import Example
from mmspec_continuous.drafters.draft_model import DraftModelOptions
from mmspec_continuous.models.continuous_ar import CausalContinuousAR
from mmspec_continuous.targets.continuous import ContinuousTarget, Guided

SIZES = dict(
    token_dim=2, grid=7, dim=16, n_layer=2, n_head=2, multiple_of=8, caption_dim=6, cls_token_num=3, head_dim=16
)
STEPS = dict(steps=3, sigma_0=0.3, head_depth=1)


def tiny(seed: int = 1, gain: float = 0.2, **sizes: Any) -> CausalContinuousAR:
    """A tiny model whose weights are large enough that a token depends on the tokens before it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CausalContinuousAR(**{**SIZES, **STEPS, **sizes})
        for weights in model.parameters():
            weights.data.copy_(torch.randn_like(weights) * (gain if weights.dim() > 1 else 1.0))
    return model.eval()


def captions(rows: Sequence[int], scale: float = 1.0, length: int = 3, width: int = 6) -> Guided:
    """Random caption features of several lengths; a row's features depend on its number only."""
    features = [torch.randn(length, width, generator=torch.Generator().manual_seed(row)) for row in rows]
    mask = torch.arange(length) >= torch.tensor([row % length for row in rows])[:, None]
    return Guided(torch.stack(features), mask, scale=scale)


@cache
def _target(head: str) -> ContinuousTarget:
    return ContinuousTarget(tiny(head=head, components=3, least=0.3))


def continuous() -> list[Example]:
    """Both heads, the denoising one under guidance."""
    return [
        Example(target=_target("diffusion"), prompt=lambda rows: captions(rows, 1.5)),
        Example(target=_target("gaussian-mixture"), prompt=captions),
    ]


def draft_model() -> Example:
    """A draft model: the tiny model with slightly perturbed weights."""
    target = _target("diffusion")
    small = CausalContinuousAR(**{k: v for k, v in target.model.config.items() if not k.startswith("_")})
    generator = torch.Generator().manual_seed(2)
    for weight, perturbed in zip(target.model.state_dict().values(), small.state_dict().values(), strict=True):
        perturbed.copy_(weight + 0.02 * torch.randn(weight.shape, generator=generator))
    return Example(
        target=target, prompt=lambda rows: captions(rows, 1.5), options=DraftModelOptions(model=small.eval())
    )


EXAMPLES = {"continuous:continuous-ar": continuous, "continuous:continuous-draft-model": draft_model}
