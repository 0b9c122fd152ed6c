"""`cspd` for MAR: continuous speculative decoding as released, where a small MAR drafts and a large one judges. Lossy.

Wang et al. (arXiv 2411.11925), and their runner: the large model draws the first sets; after them the small one draws
set by set, from its own contexts, until every `k`-th set, and at the last one, a pass of the large one denoises all
places that were drafted since, in the context of those that it has judged, with the noise that the drafts had. A draft
x is kept with probability

    min(1, F · p(x) / q(x)),    p = N(mean_p, sigma_p²), q = N(mean_q, sigma_q²) of the last step, x = mean_q,

where distances within p and q are divided by the root of `tau`, and F = prod_t sigma_p,t / sigma_q,t over all steps but
the last (`factor=released`; the paper has its inverse). A refused one gives way, where it is, to a draw from
(p - q / F)+, by rejection of draws from p; after `tries` of them to the large model's own token, where the released
code leaves zeros. Variances are learned, so that they have a distance and a factor of their own in each number.
Guarantee: none. What is judged was drafted in the context of drafts and is judged without them, so that even exact
tests would give another distribution: plain decoding with as many sets as the large model has passes.
Knobs: `k` (larger: fewer passes of the large model, and tokens of a context that is longer ago), `prefill` (larger:
more passes, fewer drafts), `tau`, `factor`, `tries`, as in `mmspec_continuous.rules.tempered`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmspec.registry.options import option
from mmspec_continuous.models.mar import MAR, Denoised, denoising
from mmspec_continuous.rules.tempered import POWERS, TAUS


@dataclass(frozen=True)
class DraftedOptions:
    k: Annotated[int, Field(ge=1)] = option(8, "sets between two passes of the large model")
    prefill: Annotated[float, Field(ge=0, le=1)] = option(0.15, "share of the sets, the first ones, not drafted")
    tau: Annotated[float, Field(ge=1)] | Literal["paper", "released"] = option(
        "released", "divides squared distances; paper: 1, released: 1764, which accepts and alters more"
    )
    factor: Literal["none", "paper", "released"] = option(
        "released", "the factor of earlier steps, its inverse, or none"
    )
    tries: Annotated[int, Field(ge=1, le=10_000)] = option(100, "most draws for what a refused draft leaves")


@dataclass(frozen=True)
class RowNoise:
    """Random numbers of a call: each row's are its own generator's, whatever the other rows do."""

    sources: Sequence[torch.Generator]
    device: torch.device | str = "cpu"

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, `[row, *shape]`."""
        return torch.stack([torch.randn(shape, generator=source) for source in self.sources]).to(self.device)

    def uniform(self, *shape: int) -> Tensor:
        """Between 0 and 1, `[row, *shape]`."""
        return torch.stack([torch.rand(shape, generator=source) for source in self.sources]).to(self.device)


def placed(noise: Tensor, places: Tensor) -> Callable[[int], Tensor]:
    """The noise `[row, cell, step, dim]` of some places `[row, n]`, a step after another, as `MAR.denoised` asks."""
    chosen = noise.gather(1, places[..., None, None].expand(-1, -1, *noise.shape[2:]))
    steps = iter(chosen.unbind(2))
    return lambda count: next(steps)


def log_ratio(theirs: Denoised, own: Denoised, temperature: float, tau: float, power: int) -> Tensor:
    """The logarithm of what keeps drafts, `[row, n]`: `theirs` are the drafts, `own` the large model's tokens."""
    apart = (theirs.x - own.x) / (own.log_sigma.exp() * temperature)
    factor = power * (theirs.spreads - own.spreads)
    return (factor + theirs.log_sigma - own.log_sigma - apart.square() / (2 * tau)).sum(-1)


def left_of(theirs: Denoised, own: Denoised, temperature: float, power: int, noise: RowNoise, tries: int) -> Tensor:
    """Draws from (p - q / F)+ of every token `[row, n, dim]`; the large model's own where no try is taken."""
    drawn, coin = noise.normal(own.x.shape[1], tries, own.x.shape[2]), noise.uniform(own.x.shape[1], tries)
    p, q = ((each.log_sigma.exp() * temperature)[:, :, None] for each in (own, theirs))
    y = own.x[:, :, None] + p * drawn
    log_q = -((y - theirs.x[:, :, None]) / q).square() / 2 - q.log()
    log_p = -drawn.square() / 2 - p.log()
    factor = power * (theirs.spreads - own.spreads).sum(-1)
    taken = coin < -torch.expm1(((log_q - log_p).sum(-1) - factor[..., None]).clamp(max=0))
    first = taken.int().argmax(-1, keepdim=True)[..., None].expand(-1, -1, 1, y.shape[-1])
    return torch.where(taken.any(-1, keepdim=True), y.gather(2, first)[:, :, 0], own.x)


def draw_drafted(
    large: MAR,
    small: MAR,
    labels: Tensor,
    orders: Tensor,
    noise: RowNoise,
    options: DraftedOptions,
    *,
    sets: int,
    guidance: float,
    temperature: float,
    denoising_steps: int,
    drawn: Callable[[Tensor, Tensor | None], bool],
) -> Tensor:
    """Tokens as of `MAR.draw`. `drawn` is called behind every pass of the large model with its places `[row, n]` and
    which of these are drafts that were kept, `[row, n]` bool, or None where there were no drafts; False ends the call.
    """
    steps = denoising(denoising_steps, labels.device, large.config.levels)
    cells, dim = large.cells, large.config.token_dim
    told = noise.normal(cells, denoising_steps + 1, dim)
    tokens = torch.zeros(*orders.shape, dim, device=labels.device)
    tau = TAUS[options.tau] if isinstance(options.tau, str) else options.tau
    power, lefts = POWERS[options.factor], large.left_behind(sets)

    def made(model: MAR, left: int, after: int) -> tuple[Tensor, Denoised]:
        wanted = orders[:, after:left].sort(1).values
        condition, scale = model.condition(labels, tokens, orders[:, left:], wanted, after, guidance)
        return wanted, model.denoised(condition, steps, placed(told, wanted), scale, temperature)

    drafts, judged = torch.zeros(3, *tokens.shape, device=labels.device), cells
    for step, (left, after) in enumerate(pairwise(lefts)):
        first = step <= sets * options.prefill
        wanted, found = made(large if first else small, left, after)
        at = wanted[..., None].expand_as(found.x)
        tokens = tokens.scatter(1, at, found.x)
        parts = torch.stack([found.x, found.log_sigma, found.spreads])
        drafts = drafts.scatter(2, at.expand_as(parts), parts)
        kept = None
        if not first:
            if step % options.k and step < sets - 1:
                continue
            wanted, own = made(large, judged, after)
            at = wanted[..., None].expand_as(own.x)
            theirs = Denoised(*drafts.gather(2, at.expand(3, *at.shape)))
            ratio = log_ratio(theirs, own, temperature, tau, power)
            kept = noise.uniform(wanted.shape[1]).log() < ratio
            other = left_of(theirs, own, temperature, power, noise, options.tries)
            tokens = tokens.scatter(1, at, torch.where(kept[..., None], theirs.x, other))
        judged = after
        if not drawn(wanted, kept):
            break
    return tokens
