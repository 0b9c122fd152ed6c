"""MAR's sampler: a set of tokens per step, in random order, the tokens of a set independent of each other.

As in the released code: cosine mask schedule, `linear` guidance that grows with the share of known tokens. Noise has an
address (row, cell, denoising step), so that a token depends on its context and its own noise: not on the other tokens
of its step, and not on its batch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

import torch
from einops import rearrange
from torch import Tensor

from mmspec.api.pipeline import Generators, Seed, seeds_for
from mmspec.core.noise import Substream
from mmspec.core.philox import PhiloxNoise, PhiloxSource
from mmspec_continuous.models.adaln_head import DiffusionHead
from mmspec_continuous.models.ddpm import Respaced, respaced
from mmspec_continuous.models.mar import MARTransformer

Growth = Literal["linear", "constant"]


def unpatchify(model: MARTransformer, tokens: Tensor) -> Tensor:
    """Scaled latents `[batch, channel, row, column]` of tokens `[batch, cell, dim]`."""
    side, patch = round(model.cells**0.5), model.config.patch_size
    return rearrange(tokens, "b (h w) (c p q) -> b c (h p) (w q)", h=side, w=side, p=patch, q=patch)


def unknown_counts(cells: int, num_iter: int) -> list[int]:
    """Tokens that are unknown before the first step (all), after it, …, after the last (none).

    Raises:
        ValueError: Fewer than one step, or more than one a token.
    """
    if not 1 <= num_iter <= cells:
        raise ValueError(f"{cells} tokens are drawn in 1 to {cells} steps, not {num_iter}")
    counts = [cells]
    for step in range(1, num_iter):
        wanted = math.floor(cells * math.cos(math.pi / 2 * step / num_iter))
        counts.append(max(1, min(counts[-1] - 1, wanted)))
    return [*counts, 0]


def guidance_at(scale: float, left: int, cells: int, growth: Growth) -> float:
    """The scale of a step that leaves so many tokens unknown; the last one counts as leaving one."""
    return scale if growth == "constant" else 1 + (scale - 1) * (cells - max(1, left)) / cells


def random_orders(key: Tensor, cells: int) -> Tensor:
    """A permutation of the cells for every row: `[batch, cell]`. Sets are taken from its end."""
    address = torch.arange(cells, device=key.device)[None].expand(len(key), -1)
    return _noise(key, address).substream(Substream.COIN).uniform().argsort(1)


def denoised(
    head: DiffusionHead,
    z: Tensor,
    chain: Respaced,
    normal: Callable[[int], Tensor],
    null: Tensor | None = None,
    scale: float = 1.0,
    temperature: float = 1.0,
) -> Tensor:
    """Tokens `[n, dim]` float32, drawn by the denoising chain of a head.

    Args:
        head: The head.
        z: `[n, z_dim]`.
        chain: The denoising steps.
        normal: Standard normal `[n, dim]` of an index: `len(chain)` for the first state, then that of the step. It is
            called once for each but 0: the last step is the mean alone.
        null: `[n, z_dim]` without class; None: no guidance.
        scale: Guidance scale.
        temperature: Factor of the noise inside the chain; the first state always has unit variance.
    """
    x = normal(len(chain))
    for step in reversed(range(len(chain))):
        x, log_variance = head.posterior(x, step, chain, z, null, scale)
        if step > 0:
            x = x + temperature * torch.exp(log_variance / 2) * normal(step)
    return x


@dataclass(frozen=True)
class SetSampler:
    """One step of the sampler: the distributions of some cells given the known ones, and a draw.

    Attributes:
        model: The model.
        labels: `[batch]` classes; None: the null class.
        key: `[batch, 2]` of the noise (`PhiloxSource.seeded(…).key`).
        num_sampling_steps: Of denoising.
        guided: Whether the null class is run, too.
        temperature: Of the noise inside the denoising chain.
    """

    model: MARTransformer
    labels: Tensor | None
    key: Tensor
    num_sampling_steps: int = 100
    guided: bool = False
    temperature: float = 1.0

    def draw(self, tokens: Tensor, unknown: Tensor, cells: Tensor, scale: float = 1.0) -> Tensor:
        """Tokens of some cells: `[batch, n, token_dim]`, independent of each other given what is known.

        Args:
            tokens: `[batch, cell, token_dim]`.
            unknown: `[batch, cell]` bool.
            cells: `[batch, n]` which.
            scale: Of the guidance.
        """
        z, null = self._conditions(tokens, unknown, cells)
        chain, noise = respaced(self.num_sampling_steps), _noise(self.key, cells)

        def normal(index: int) -> Tensor:
            return replace(noise, round=torch.full_like(self.key[:, :1], index)).normal(tokens.shape[-1]).flatten(0, 1)

        drawn = denoised(self.model.diffloss, z, chain, normal, null, scale, self.temperature)
        return drawn.unflatten(0, cells.shape)

    def _conditions(self, tokens: Tensor, unknown: Tensor, cells: Tensor) -> tuple[Tensor, Tensor | None]:
        """The head's condition of the cells, `[batch · n, dim]`, with the class and, under guidance, without it."""
        condition, times = self.model.condition(self.labels, len(tokens)), 1 + self.guided
        if self.guided:
            condition = torch.cat([condition, self.model.condition(None, len(tokens))])
        z = self.model(tokens.repeat(times, 1, 1), unknown.repeat(times, 1), condition)
        z = z.gather(1, cells.repeat(times, 1)[..., None].expand(-1, -1, z.shape[-1])).flatten(0, 1)
        return (z, None) if not self.guided else z.chunk(2)


@torch.no_grad()
def sample(
    model: MARTransformer,
    labels: Tensor | Sequence[int],
    *,
    num_iter: int = 64,
    num_sampling_steps: int = 100,
    guidance_scale: float = 1.0,
    guidance_growth: Growth = "linear",
    temperature: float = 1.0,
    seed: Seed = None,
    generator: Generators = None,
) -> Tensor:
    """Tokens of pictures: `[batch, cell, token_dim]` float32; `unpatchify` makes latents of them.

    Args:
        model: The model.
        labels: Classes, one a picture.
        num_iter: Steps; more are better and slower. Published numbers are of 256 for 256 tokens.
        num_sampling_steps: Denoising steps of a token; the release samples 100 of 1000.
        guidance_scale: 1 is none and half the cost; more follows the class more closely.
        guidance_growth: `linear`: from 1 to the scale as tokens become known. `constant`: the scale throughout.
        temperature: Of the noise inside the denoising chain; below 1 pictures vary less.
        seed: One for all rows, or one a row.
        generator: Instead of `seed`: a `torch.Generator`, or one a row.

    Raises:
        ValueError: An argument is out of range, or the model gave values that are not finite.
    """
    labels = torch.as_tensor(labels, device=model.fake_latent.device)
    _check(model, labels, guidance_growth, temperature)
    counts = unknown_counts(model.cells, num_iter)
    key = PhiloxSource.seeded(seeds_for(len(labels), seed, generator, "picture"), len(labels), labels.device).key
    sampler = SetSampler(model, labels, key, num_sampling_steps, guidance_scale != 1, temperature)
    orders = random_orders(key, model.cells)
    tokens = torch.zeros(len(labels), model.cells, model.token_dim, dtype=torch.float32, device=labels.device)
    unknown = torch.ones_like(orders, dtype=torch.bool)
    for before, left in pairwise(counts):
        cells = orders[:, left:before]
        drawn = sampler.draw(tokens, unknown, cells, guidance_at(guidance_scale, left, model.cells, guidance_growth))
        tokens.scatter_(1, cells[..., None].expand_as(drawn), drawn)
        unknown.scatter_(1, cells, False)
    _refuse_broken(tokens, orders)
    return tokens


def _noise(key: Tensor, address: Tensor) -> PhiloxNoise:
    return PhiloxNoise(key, address, torch.zeros_like(key[:, :1]))


def _check(model: MARTransformer, labels: Tensor, growth: str, temperature: float) -> None:
    classes = model.config.class_num
    integers = labels.dim() == 1 and len(labels) > 0 and not labels.is_floating_point()
    if not integers or not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(f"labels are integers from 0 to {classes - 1}, one a picture")
    if growth not in get_args(Growth):
        raise ValueError(f"guidance_growth is one of {', '.join(get_args(Growth))}, not {growth!r}")
    if not temperature >= 0:
        raise ValueError(f"temperature is not negative, got {temperature}")


def _refuse_broken(tokens: Tensor, orders: Tensor) -> None:
    """Raises ValueError, naming the first token, in the order of drawing, that is not finite."""
    broken = ~tokens.isfinite().all(-1).gather(1, orders.flip(1))
    if not bool(broken.any()):
        return
    row = int(broken.any(1).int().argmax())
    turn = int(broken[row].int().argmax())
    cell = int(orders.flip(1)[row, turn])
    raise ValueError(
        f"picture {row}: token {cell} (drawn as number {turn + 1} of {orders.shape[1]}) is not finite; "
        "are the weights, or is half precision too narrow for them?"
    )
