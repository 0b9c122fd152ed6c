"""MAR's diffusion head: a small MLP that denoises one token, told what the transformer says of it.

Li et al., "Autoregressive Image Generation without Vector Quantization" (arXiv 2406.11838), § 4.1. The transformer's
vector enters through adaptive layer norms. Keys are the published ones, under `diffloss.`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mmspec_continuous.models.ddpm import Respaced

EPS = 1e-6
FREQUENCIES = 256


class TimeEmbedding(nn.Module):
    """Sines of the time through an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, time: Tensor) -> Tensor:
        half = FREQUENCIES // 2
        turns = torch.exp(-math.log(10_000) / half * torch.arange(half, dtype=torch.float32, device=time.device))
        angles = time[:, None].float() * turns
        return self.mlp(torch.cat([angles.cos(), angles.sin()], -1).to(self.mlp[0].weight.dtype))


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale) + shift


class ResBlock(nn.Module):
    """Norm, shift and scale, MLP, gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_ln = nn.LayerNorm(width, eps=EPS)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate = self.adaLN_modulation(condition).chunk(3, -1)
        return x + gate * self.mlp(modulated(self.in_ln(x), shift, scale))


class FinalLayer(nn.Module):
    """Norm without weights, shift and scale, out."""

    def __init__(self, width: int, leaves: int) -> None:
        super().__init__()
        self.norm_final = nn.LayerNorm(width, elementwise_affine=False, eps=EPS)
        self.linear = nn.Linear(width, leaves)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return self.linear(modulated(self.norm_final(x), *self.adaLN_modulation(condition).chunk(2, -1)))


class SimpleMLPAdaLN(nn.Module):
    """The network.

    Args:
        dim: Of a token.
        z_dim: Of the transformer's vectors.
        width: Its own.
        depth: Residual blocks.
    """

    def __init__(self, dim: int, z_dim: int, width: int, depth: int) -> None:
        super().__init__()
        self.dim = dim
        self.time_embed = TimeEmbedding(width)
        self.cond_embed = nn.Linear(z_dim, width)
        self.input_proj = nn.Linear(dim, width)
        self.res_blocks = nn.ModuleList(ResBlock(width) for _ in range(depth))
        self.final_layer = FinalLayer(width, 2 * dim)

    def forward(self, x: Tensor, time: Tensor, z: Tensor) -> Tensor:
        """Noise, and where the log-variance is: `[n, 2 · dim]` of `x [n, dim]`, `time [n]`, `z [n, z_dim]`."""
        condition = self.time_embed(time) + self.cond_embed(z)
        x = self.input_proj(x.to(z.dtype))
        for block in self.res_blocks:
            x = block(x, condition)
        return self.final_layer(x, condition)

    def guided(self, x: Tensor, time: Tensor, z: Tensor, null: Tensor, scale: float) -> Tensor:
        """The same under classifier-free guidance of the noise; the variance is the conditional one, untouched.

        Args:
            x: `[n, dim]`.
            time: `[n]`.
            z: `[n, z_dim]` with the class.
            null: `[n, z_dim]` without.
            scale: 1 is no guidance, 0 no class.
        """
        given, free = self(x.repeat(2, 1), time.repeat(2), torch.cat([z, null])).chunk(2)
        noise = torch.lerp(free[:, : self.dim], given[:, : self.dim], scale)
        return torch.cat([noise, given[:, self.dim :]], -1)


class DiffusionHead(nn.Module):
    """The network under the name that the published keys have for it, and the chain that it drives."""

    def __init__(self, dim: int, z_dim: int, width: int, depth: int) -> None:
        super().__init__()
        self.net = SimpleMLPAdaLN(dim, z_dim, width, depth)

    def posterior(
        self, x: Tensor, step: int, chain: Respaced, z: Tensor, null: Tensor | None = None, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Mean and log-variance `[n, dim]` of the state after `x [n, dim]`; guided where there is a `null`."""
        time = torch.full((len(x),), chain.times[step], dtype=torch.float32, device=x.device)
        out = self.net(x, time, z) if null is None else self.net.guided(x, time, z, null, scale)
        return chain.posterior(x, out, step)

    def sample(
        self,
        z: Tensor,
        chain: Respaced,
        normal: Callable[[int], Tensor],
        null: Tensor | None = None,
        scale: float = 1.0,
        temperature: float = 1.0,
    ) -> Tensor:
        """Tokens `[n, dim]`, float32.

        Args:
            z: `[n, z_dim]`.
            chain: The denoising steps.
            normal: Standard normal `[n, dim]` of an index: `len(chain)` where the chain starts, then that of the step.
                It is asked once for each but 0: the last step is the mean alone.
            null: `[n, z_dim]` without class; None: no guidance.
            scale: Of the guidance.
            temperature: Factor of the noise inside the chain; it starts from unit variance always.
        """
        x = normal(len(chain))
        for step in reversed(range(len(chain))):
            x, log_variance = self.posterior(x, step, chain, z, null, scale)
            if step > 0:
                x = x + temperature * torch.exp(log_variance / 2) * normal(step)
        return x
