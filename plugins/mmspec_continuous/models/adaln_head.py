"""MAR's diffusion head: a small MLP that denoises one token, conditioned on the transformer's vector for it.

Li et al., "Autoregressive Image Generation without Vector Quantization" (arXiv 2406.11838), § 4.1. The vector enters
through adaptive layer norms. Weights have the published keys, under `diffloss.`.
"""

import math

import torch
from torch import Tensor, nn

from mmspec_continuous.models.ddpm import Respaced

EPS = 1e-6
FREQUENCIES = 256


class TimeEmbedding(nn.Module):
    """Sinusoidal embedding of the diffusion time, through an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, time: Tensor) -> Tensor:
        half = FREQUENCIES // 2
        frequencies = torch.exp(-math.log(10_000) / half * torch.arange(half, dtype=torch.float32, device=time.device))
        angles = time[:, None].float() * frequencies
        return self.mlp(torch.cat([angles.cos(), angles.sin()], -1).to(self.mlp[0].weight.dtype))


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale) + shift


class ResidualBlock(nn.Module):
    """Layer norm, shift and scale, MLP, gate, residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_ln = nn.LayerNorm(width, eps=EPS)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate = self.adaLN_modulation(condition).chunk(3, -1)
        return x + gate * self.mlp(modulated(self.in_ln(x), shift, scale))


class FinalLayer(nn.Module):
    """Layer norm without weights, shift and scale, output projection."""

    def __init__(self, width: int, out_dim: int) -> None:
        super().__init__()
        self.norm_final = nn.LayerNorm(width, elementwise_affine=False, eps=EPS)
        self.linear = nn.Linear(width, out_dim)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return self.linear(modulated(self.norm_final(x), *self.adaLN_modulation(condition).chunk(2, -1)))


class SimpleMLPAdaLN(nn.Module):
    """The denoising network.

    Args:
        dim: Numbers per token.
        z_dim: Width of the transformer's vectors.
        width: Width of the network.
        depth: Residual blocks.
    """

    def __init__(self, dim: int, z_dim: int, width: int, depth: int) -> None:
        super().__init__()
        self.dim = dim
        self.time_embed = TimeEmbedding(width)
        self.cond_embed = nn.Linear(z_dim, width)
        self.input_proj = nn.Linear(dim, width)
        self.res_blocks = nn.ModuleList(ResidualBlock(width) for _ in range(depth))
        self.final_layer = FinalLayer(width, 2 * dim)

    def forward(self, x: Tensor, time: Tensor, z: Tensor) -> Tensor:
        """Prediction of the noise and of the log-variance, `[n, 2 · dim]`.

        Args:
            x: States, `[n, dim]`.
            time: Diffusion times, `[n]`.
            z: The transformer's vectors, `[n, z_dim]`.

        Returns:
            The noise, then where the log-variance lies between its bounds (-1: the lower, 1: the upper).
        """
        condition = self.time_embed(time) + self.cond_embed(z)
        x = self.input_proj(x.to(z.dtype))
        for block in self.res_blocks:
            x = block(x, condition)
        return self.final_layer(x, condition)

    def guided(self, x: Tensor, time: Tensor, z: Tensor, null: Tensor, scale: float) -> Tensor:
        """The same with classifier-free guidance of the noise; the log-variance is the conditional one.

        Args:
            x: States, `[n, dim]`.
            time: Diffusion times, `[n]`.
            z: Vectors with the class, `[n, z_dim]`.
            null: Vectors without it, `[n, z_dim]`.
            scale: Guidance scale: 1 is no guidance, 0 no class.
        """
        conditional, free = self(x.repeat(2, 1), time.repeat(2), torch.cat([z, null])).chunk(2)
        noise = torch.lerp(free[:, : self.dim], conditional[:, : self.dim], scale)
        return torch.cat([noise, conditional[:, self.dim :]], -1)


class DiffusionHead(nn.Module):
    """The network, under the name of the published keys, and the steps of its denoising chain."""

    def __init__(self, dim: int, z_dim: int, width: int, depth: int) -> None:
        super().__init__()
        self.net = SimpleMLPAdaLN(dim, z_dim, width, depth)

    def posterior(
        self, x: Tensor, step: int, chain: Respaced, z: Tensor, null: Tensor | None = None, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the next state, `[n, dim]` each.

        Args:
            x: States, `[n, dim]`.
            step: Index of the step in `chain`.
            chain: The denoising steps.
            z: The transformer's vectors, `[n, z_dim]`.
            null: Vectors without the class, `[n, z_dim]`; None: no guidance.
            scale: Guidance scale.
        """
        time = torch.full((len(x),), chain.times[step], dtype=torch.float32, device=x.device)
        out = self.net(x, time, z) if null is None else self.net.guided(x, time, z, null, scale)
        return chain.posterior(x, out, step)
