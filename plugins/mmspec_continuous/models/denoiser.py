"""A denoising head of few steps whose last step keeps its noise, for distributions that are coupled step by step.

A token x_0 is reached from x_T ~ N(0, I) in T steps of fixed variances: ancestral sampling of DDPM (Ho et al., arXiv
2006.11239, eq. 6) with alpha-bar = cos² (Nichol & Dhariwal, 2102.09672), except that the last step adds noise of
standard deviation `sigma_0` instead of none. This is the model's own distribution, as sharp as `sigma_0` allows. The
network predicts v (Salimans & Ho, 2202.00512), so that x_0 = sqrt(alpha-bar) x - sqrt(1 - alpha-bar) v, and the mean of
a step is carry · x - gain · v.

As in MAR (2406.11838), the transformer's vector enters through adaptive layer norms. Here their shifts, scales and
gates are a part computed from the vector plus a learned part per step; so the former, half of the work of a step in
`SimpleMLPAdaLN`, is computed once per token (`project`) and not once per step.
Knobs: `steps` (larger: finer and slower, one pass of the network each); `sigma_0` (larger: more drafts are accepted,
and tokens are noisier).
"""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.distributions import DenoisingChain, Head
from mmspec.core.transfer import moved

EDGE = 0.99
"""The chain begins at this share of the cosine's quarter: at 1, alpha-bar would be 0, and a step divides by it."""


class Denoiser(nn.Module):
    """The network, `depth` residual blocks of a width, and its chain for tokens of about unit variance."""

    def __init__(self, dim: int, input_dim: int, width: int, depth: int, steps: int, sigma_0: float) -> None:
        super().__init__()
        self.dim, self.depth = dim, depth
        # Not buffers, so that they stay float32 and on the CPU when the weights are moved or converted.
        # `[steps]` each, on the CPU: the share of x_0's variance in the state that a step begins with; the factors of
        # the state and of -v in the step's mean; the same mean is of_x · x + of_x0 · x_0; the noise's deviation.
        self.alpha_bar, self.carry, self.gain, self.of_x0, self.sigmas = _chain(steps, sigma_0)
        self.of_x = self.carry - self.of_x0 * self.alpha_bar.sqrt()
        parts = (3 * depth + 2) * width
        self.told = nn.Linear(input_dim, width)  # the name that saved weights have
        self.modulation = nn.Linear(width, parts)
        self.steps = nn.Parameter(torch.randn(steps, parts) * 0.02)
        self.enter = nn.Linear(dim, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(depth)
        )
        self.leave = nn.Linear(width, dim)

    def project(self, hidden: Tensor) -> Tensor:
        """The head's condition `[…, parts]` of the transformer's vectors `[…, input_dim]`: what all steps share."""
        return self.modulation(F.silu(self.told(hidden)))

    def forward(self, x: Tensor, step: int | Tensor, condition: Tensor) -> Tensor:
        """Prediction of v, `[…, dim]` float32, of a state `x […, dim]` where the step of that index begins, one for
        all, or `[…]`; `condition […, parts]` is from `project`.
        """
        modulation = (condition + self.steps[step]).to(self.steps.dtype)
        *parts, shift, scale = modulation.chunk(3 * self.depth + 2, -1)
        h = self.enter(x.to(modulation.dtype))
        for block, i in zip(self.blocks, range(0, 3 * self.depth, 3), strict=True):
            h = torch.addcmul(h, parts[i], block(_modulated(h, parts[i + 1], parts[i + 2])))
        return self.leave(_modulated(h, scale, shift)).float()

    def mean(self, x: Tensor, step: int | Tensor, condition: Tensor) -> Tensor:
        """Mean of the next state `[m, dim]`, from the state `x [m, dim]` at step 0 … steps - 1 (one, or `[m]`) and the
        condition `[m, parts]`; with `[m, 2, parts + 1]` from `guided`, v is led away from the null condition's.
        """
        if condition.dim() == x.dim():
            v = self(x, step, condition)
        else:
            parts = self.steps.shape[1]
            both = self(x[:, None], step if isinstance(step, int) else step[:, None], condition[..., :parts])
            v = torch.lerp(both[:, 1], both[:, 0], condition[:, 0, parts:].float())
        return _at(self.carry, step) * x - _at(self.gain, step) * v

    def clean(self, x: Tensor, step: Tensor, mean: Tensor) -> Tensor:
        """The prediction of x_0, `[m, dim]`, that a mean was computed from, after `x [m, dim]` at `step [m]`."""
        return (mean - _at(self.of_x, step) * x) / _at(self.of_x0, step)

    def around(self, x: Tensor, step: Tensor, clean: Tensor) -> Tensor:
        """The mean that a prediction of x_0 gives: the inverse of `clean`."""
        return _at(self.of_x, step) * x + _at(self.of_x0, step) * clean

    @staticmethod
    def guided(condition: Tensor, null: Tensor | None, scale: float | Tensor | None) -> Tensor:
        """The input of `mean`: the condition `[batch, node, parts]`; under guidance, away from `null` by a scale for
        all or `[batch]`, `[batch, node, 2, parts + 1]`, the scale last.
        """
        if null is None:
            return condition
        given = scale if isinstance(scale, Tensor) else torch.tensor(scale, device="cpu")
        scales = moved(given, condition.device).float().reshape(-1, 1, 1, 1)
        return torch.cat([torch.stack([condition, null], 2), scales.expand(*condition.shape[:2], 2, 1)], -1)

    def distribution(
        self, condition: Tensor, null: Tensor | None, scale: float | Tensor | None, head: Head | None
    ) -> DenoisingChain:
        """The distribution of tokens; arguments as of `guided`, and `head`: what runs this head; None: itself."""
        return DenoisingChain(self.guided(condition, null, scale), self if head is None else head)


def _chain(steps: int, sigma_0: float) -> tuple[Tensor, ...]:
    """alpha-bar, carry, gain, weight of x_0 and sigma of every step, `[steps]` float32 each."""
    # Python's math, not torch: models are also built on the meta device, where new tensors have no values.
    bars = [math.cos(time / steps * math.pi / 2 * EDGE) ** 2 for time in range(steps, -1, -1)]
    rows = []
    for now, after in pairwise(bars):
        share = now / after
        of_x0 = after**0.5 * (1 - share) / (1 - now)
        sigma = ((1 - after) / (1 - now) * (1 - share)) ** 0.5
        rows.append((now, share**0.5, of_x0 * (1 - now) ** 0.5, of_x0, sigma))
    rows[-1] = (*rows[-1][:-1], sigma_0)
    return tuple(torch.tensor(column) for column in zip(*rows, strict=True))


def _modulated(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Layer norm without weights, times 1 + scale, plus shift."""
    normed = F.layer_norm(x, x.shape[-1:])
    return torch.addcmul(normed + shift, normed, scale)


def _at(values: Tensor, step: int | Tensor) -> float | Tensor:
    """The entry of `values [steps]` at one step, or its entries at `step [m]`: `[m, 1]`."""
    return float(values[step]) if isinstance(step, int) else moved(values, step.device)[step, None]
