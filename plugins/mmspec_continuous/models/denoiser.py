"""A denoising head of few steps whose last step keeps its noise, for distributions that couple step by step.

A token x_0 is reached from x_T ~ N(0, I) in T steps of fixed variances: ancestral sampling of DDPM (Ho et al., arXiv
2006.11239, eq. 6) at alpha-bar = cos² (Nichol & Dhariwal, 2102.09672), except that the last step adds `sigma_0` instead
of nothing: the model's own distribution, which is as sharp as `sigma_0` allows. The network says v (Salimans & Ho,
2202.00512), so that x_0 = sqrt(alpha-bar) x - sqrt(1 - alpha-bar) v and the mean of a step is carry · x - gain · v.

As in MAR (2406.11838) the transformer's vector enters through adaptive layer norms; here what they add is a sum of a
part of the vector and a part of the step. So the vector's part, half of a step's work in `SimpleMLPAdaLN`, is computed
once a token (`tell`) and not once a step.
Knobs: `steps` (more: finer, and dearer: one pass of the network each); `sigma_0` (larger: more drafts are accepted, and
tokens are noisier).
"""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.distributions import DenoisingChain, Head

EDGE = 0.99
"""Where on the cosine a chain begins: at 1 nothing of the token would be left, and the first step would divide by 0."""


class Denoiser(nn.Module):
    """The network and its chain.

    Args:
        dim: Numbers of a token.
        told: Width of the transformer's vectors.
        width: Its own.
        depth: Residual blocks.
        steps: Denoising steps.
        sigma_0: Noise of the last one, where tokens have about unit variance.

    Attributes:
        sigmas: `[steps]` on the CPU: noise of every step.
        carry: `[steps]` on the CPU: how much of the state its next mean carries over.
        gain: `[steps]` on the CPU: how much of v its next mean loses.
        of_x, of_x0: `[steps]` on the CPU: the same mean is of_x · x + of_x0 · x_0.
        kept: `[steps]` on the CPU: alpha-bar of the states that steps begin with.
    """

    def __init__(self, dim: int, told: int, width: int, depth: int, steps: int, sigma_0: float) -> None:
        super().__init__()
        self.dim, self.depth = dim, depth
        # No buffers: they stay float32 and on the CPU, whatever the weights become.
        self.kept, self.carry, self.gain, self.of_x0, self.sigmas = _chain(steps, sigma_0)
        self.of_x = self.carry - self.of_x0 * self.kept.sqrt()
        parts = (3 * depth + 2) * width
        self.told = nn.Linear(told, width)
        self.modulation = nn.Linear(width, parts)
        self.steps = nn.Parameter(torch.randn(steps, parts) * 0.02)
        self.enter = nn.Linear(dim, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(depth)
        )
        self.leave = nn.Linear(width, dim)

    def tell(self, hidden: Tensor) -> Tensor:
        """What the head takes from vectors `[…, told]`, whatever the step: `[…, parts]`."""
        return self.modulation(F.silu(self.told(hidden)))

    def forward(self, x: Tensor, step: int | Tensor, told: Tensor) -> Tensor:
        """v `[…, dim]`, float32.

        Args:
            x: `[…, dim]` the state.
            step: Which step it begins; one for all, or `[…]`.
            told: `[…, parts]`, from `tell`.
        """
        at = (told + self.steps[step]).to(self.steps.dtype)
        *parts, shift, scale = at.chunk(3 * self.depth + 2, -1)
        h = self.enter(x.to(at.dtype))
        for block, i in zip(self.blocks, range(0, 3 * self.depth, 3), strict=True):
            h = torch.addcmul(h, parts[i], block(_modulated(h, parts[i + 1], parts[i + 2])))
        return self.leave(_modulated(h, scale, shift)).float()

    def mean(self, x: Tensor, step: int | Tensor, condition: Tensor) -> Tensor:
        """Mean of the next state `[m, dim]` after `x [m, dim]` at step 0 … steps - 1.

        Args:
            x: The state.
            step: Step; one for all, or `[m]`.
            condition: As `conditions` makes it: guidance leads x_0 (so v) away from the null condition's.
        """
        if condition.dim() == x.dim():
            v = self(x, step, condition)
        else:
            parts = self.steps.shape[1]
            both = self(x[:, None], step if isinstance(step, int) else step[:, None], condition[..., :parts])
            v = torch.lerp(both[:, 1], both[:, 0], condition[:, 0, parts:].float())
        return _at(self.carry, step) * x - _at(self.gain, step) * v

    def clean(self, x: Tensor, step: Tensor, mean: Tensor) -> Tensor:
        """The x_0 that a mean stands for: `[m, dim]`, after `x [m, dim]` at `step [m]`."""
        return (mean - _at(self.of_x, step) * x) / _at(self.of_x0, step)

    def around(self, x: Tensor, step: Tensor, clean: Tensor) -> Tensor:
        """The mean that stands for an x_0: the inverse of `clean`."""
        return _at(self.of_x, step) * x + _at(self.of_x0, step) * clean

    @staticmethod
    def conditions(told: Tensor, null: Tensor | None, scale: float | Tensor) -> Tensor:
        """What `mean` takes: `[batch, node, parts]`; under guidance `[batch, node, 2, parts + 1]`, the scale last.

        Args:
            told: `[batch, node, parts]`.
            null: The same without the condition; None: no guidance.
            scale: Of the guidance, one for all or `[batch]`.
        """
        if null is None:
            return told
        scales = torch.as_tensor(scale, dtype=torch.float32, device=told.device).reshape(-1, 1, 1, 1)
        return torch.cat([torch.stack([told, null], 2), scales.expand(*told.shape[:2], 2, 1)], -1)

    def distribution(self, told: Tensor, null: Tensor | None, scale: float | Tensor, head: Head) -> DenoisingChain:
        """The distribution of tokens, as `conditions`; `head` is this one as distributions call it."""
        return DenoisingChain(self.conditions(told, null, scale), head)

    def loss(self, told: Tensor, tokens: Tensor, generator: torch.Generator, repeats: int = 4) -> Tensor:
        """Squared error of v at random steps, the mean over everything.

        Args:
            told: `[batch, cell, parts]`.
            tokens: `[batch, cell, dim]`.
            generator: Steps and noise, on the CPU.
            repeats: Steps a token; the transformer, which costs more, runs once for all of them.
        """
        shape = (repeats, *tokens.shape[:-1])
        step = torch.randint(len(self.sigmas), shape, generator=generator)
        noise = torch.randn(*shape, self.dim, generator=generator).to(tokens.device)
        kept = self.kept[step][..., None].to(tokens.device)
        x = kept.sqrt() * tokens + (1 - kept).sqrt() * noise
        v = kept.sqrt() * noise - (1 - kept).sqrt() * tokens
        return F.mse_loss(self(x, step.to(tokens.device), told.expand(repeats, *told.shape)), v)


def _chain(steps: int, sigma_0: float) -> tuple[Tensor, ...]:
    """alpha-bar, carry, gain, weight of x_0 and sigma of every step, `[steps]` float32 each."""
    # Written out, not by torch: models are also made where new tensors would be empty.
    bars = [math.cos(time / steps * math.pi / 2 * EDGE) ** 2 for time in range(steps, -1, -1)]
    made = []
    for now, after in pairwise(bars):
        share = now / after
        of_x0 = after**0.5 * (1 - share) / (1 - now)
        sigma = ((1 - after) / (1 - now) * (1 - share)) ** 0.5
        made.append((now, share**0.5, of_x0 * (1 - now) ** 0.5, of_x0, sigma))
    made[-1] = (*made[-1][:-1], sigma_0)
    return tuple(torch.tensor(column) for column in zip(*made, strict=True))


def _modulated(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """A norm without weights, times 1 + scale, plus shift."""
    normed = F.layer_norm(x, x.shape[-1:])
    return torch.addcmul(normed + shift, normed, scale)


def _at(values: Tensor, step: int | Tensor) -> float | Tensor:
    """Numbers of the chain `[steps]` at one step, or at those of states `[m, dim]`: `[m, 1]`."""
    return float(values[step]) if isinstance(step, int) else values.to(step.device)[step, None]
