"""`tempered`: continuous speculative decoding as published. Lossy.

Wang et al. (arXiv 2411.11925): draft and target denoise with the same noise, and only the last step is tested. With
p = N(mean_p, sigma_0²) and q = N(mean_q, sigma_0²) there, the draft x ~ q is accepted with probability

    min(1, F exp((|x - mean_q|² - |x - mean_p|²) / (2 sigma_0² tau))),    F = prod_t |Sigma_q,t|^½ / |Sigma_p,t|^½,

where the product is over all steps but the last. A refused x leaves the residual (F p - q)+, which is drawn from by
rejection of y ~ p; after `tries` proposals the target's own sample is taken (the released code returns zeros).
Given the shared noise, the two last steps, along the line through their means, in units of sigma_0 and from the
target's mean, are N(0, 1) and N(d, 1); orthogonal to it they are equal. So residuals and total variations have one
dimension.
Two constants are known: the paper's tau = 1 (`paper`), and the released code's, which divides distances by 42
before it squares them, so that tau = 42² = 1,764 (`released`); its F is the inverse of the paper's. The method `cspd`
takes the released one. The rule by itself takes 42, between the two, with which its bias on our models' cards was
measured. F is 1 where both chains have the same sigmas, as in our models; the paper's models learn theirs.
Here the draft keeps the noise of its last step, without which nothing could be tested (the released code drafts the
mean).
Guarantee: none. With `tau=1` and F = 1 the rule is exact up to the refused drafts for which no proposal is taken (at
most 0.4 percent with 100 tries); with F, with its inverse, or with a larger tau it is not. (`rejection`, which couples
every step, accepts more than a test of the last step with tau = 1.)
Measured bias: given the shared noise, the total variation of the last step. The bias of a token is at most its mean,
and a picture's at most the sum over its tokens; the bias itself is not known, as a token's density over all noise
is not. The Fréchet distance of `python -m tools.bench continuous` shows what it does to pictures.
Knobs: `tau` (larger: accepts more, larger bias), `factor`, `tries` (fewer: slightly larger bias), `measure`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.distributions import DenoisingChain, Distribution, Gaussian, drawn_part, reflect, where_nodes
from mmspec.core.distributions.trajectory import Trajectory
from mmspec.core.noise import Noise, Round, Substream
from mmspec.core.protocols import Target
from mmspec.core.rules.rule import DraftsAfresh, walk, walk_where
from mmspec.core.transfer import widest
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.registry.options import option
from mmspec_continuous.specs import TEMPERED
from mmspec_continuous.targets.continuous import refuse_mixtures

REACH = 8.0  # integrals are cut off at this many standard deviations
POINTS = 192  # points of an integral on each side of the middle between the two means

Finish = Callable[[Tensor], Tensor]
"""From last states `[batch, node, dim]` to draws of the target's distribution `[batch, node, *draw]`."""


@dataclass(frozen=True)
class LastStep:
    """The last step at every drafted node."""

    mean: Tensor  # mean of the target's last step, `[batch, node, dim]`
    draft: Tensor  # mean of the drafter's last step, `[batch, node, dim]`
    sigma: float  # standard deviation of both
    log_factor: float = 0.0  # log of the factor by which the paper multiplies the ratio of the densities

    def log_ratio(self, x: Tensor, tau: float) -> Tensor:
        """Log of factor · (p(x) / q(x))^(1 / tau), for `x [batch, node, dim]`: `[batch, node]`."""
        p, q = ((x - mean) / self.sigma for mean in (self.mean, self.draft))
        return ((q * q).sum(-1) - (p * p).sum(-1)) / (2 * tau) + self.log_factor

    def residual(self, noise: Noise, tries: int) -> Tensor:
        """Draws from the normalised (factor · p - q)+, `[batch, node, dim]`: a proposal y ~ p is taken with probability
        (1 - q(y) / (factor · p(y)))+, and after `tries` refused ones another as it is.
        """
        line, distance = self._line()
        half_square, angle, coin = noise.substream(Substream.RESIDUAL).exponential(3 * (tries + 1)).chunk(3, -1)
        # Box-Muller: half of the squared radius is exponential, and 1 - exp(-angle) is uniform.
        along = torch.sqrt(2 * half_square) * torch.cos(2 * torch.pi * torch.expm1(-angle))
        taken = -coin > distance * along - distance * distance / 2 - self.log_factor
        taken[..., -1] = True
        along = along.gather(-1, taken.int().argmax(-1, keepdim=True))
        across = noise.normal(line.shape[-1])  # the normals of a free draw, which a node with a draft does not use
        across = across - line * (across * line).sum(-1, keepdim=True)
        return self.mean + self.sigma * (across + along * line)

    def bias(self, tau: float, tries: int) -> tuple[Tensor, Tensor]:
        """The distance of the rule's draw at each node from the target's, given the shared noise: total variation
        between the rule's and the target's last step, and the rule's probability of accepting the draft less an exact
        rule's, `[batch, node]` each.
        """
        distance = self._line()[1]
        distance = distance.to(widest(distance.device))
        middle = distance / 2
        at, weights = zip(
            _midpoints(torch.full_like(distance, -REACH), middle.clamp(max=REACH)),
            _midpoints(torch.maximum(middle, distance - REACH), distance + REACH),
            strict=True,
        )
        u, weight = torch.cat(at, -1), torch.cat(weights, -1)
        p, q = _normal(u), _normal(u - distance)
        log_ratio = distance * distance / 2 - u * distance
        accepted = q * (log_ratio / tau + self.log_factor).clamp(max=0).exp()
        residual = p * (-torch.expm1(-log_ratio - self.log_factor)).clamp(min=0)
        acceptance, hit = ((values * weight).sum(-1, keepdim=True) for values in (accepted, residual))
        missed = (1 - hit.clamp(0, 1)) ** tries
        redrawn = (1 - missed) * residual / hit.clamp(min=torch.finfo(hit.dtype).tiny) + missed * p
        density = accepted + (1 - acceptance).clamp(min=0) * redrawn
        tv = ((density - p).abs() * weight).sum(-1) / 2
        return tv, acceptance[..., 0] - (torch.minimum(p, q) * weight).sum(-1)

    def _line(self) -> tuple[Tensor, Tensor]:
        """Direction from the target's mean to the draft's, `[batch, node, dim]`, and their distance `[…, 1]`."""
        between = (self.draft - self.mean) / self.sigma
        distance = between.norm(dim=-1, keepdim=True)
        return between / distance.clamp(min=torch.finfo(distance.dtype).tiny), distance


def up_to_last_step(
    distribution: Distribution, draft: Distribution, follows: Tensor, noise: Noise, factor: int
) -> tuple[LastStep, Tensor, Finish]:
    """Run the target's chain with the draft's noise, up to the last step; returns the last step, the last states
    `[batch, node, dim]` of free draws, and how last states become draws.

    The target's distribution `[batch, node]` is of denoising chains, or Gaussians, which are chains of one step;
    `draft` is what the drafted nodes were drawn from, `[batch, node - 1]`. `follows [batch, node - 1]` bool are nodes
    whose drafted child was drawn; the others, and the last node, draw freely, with `noise`. `factor` is the power of
    the paper's factor: 1, 0 for no factor, -1 for its inverse. Refuses a draft with another sigma.
    """
    if isinstance(distribution, Gaussian) and isinstance(draft, Gaussian):
        return (
            LastStep(distribution.mean[:, :-1], draft.mean, float(distribution.sigma)),
            distribution.draw(noise),
            lambda last: last,
        )
    if not isinstance(distribution, DenoisingChain):
        raise ValueError(
            f"only the last step of a denoising chain can be tested, and a {type(distribution).__name__} has none"
        )
    path = distribution.along(draft, follows, noise)  # raises where the draft is no trajectory
    assert isinstance(draft, Trajectory)
    sigmas, drafted, steps = distribution.schedule.sigmas, draft.schedule.sigmas, distribution.schedule.steps
    if drafted[-1] != sigmas[-1]:
        raise ValueError(
            f"all tokens, denoising step {steps - 1} of {steps} (the last one): the draft's sigma is "
            f"{drafted[-1]:g}, the target's {sigmas[-1]:g}; here they have to be one"
        )
    ratios = sum(math.log(q / p) for q, p in zip(drafted[:-1], sigmas[:-1], strict=True))
    log_factor = factor * distribution.head.dim * ratios
    means = distribution.with_draws(path).means
    step = LastStep(means[:, :-1, -1], draft.means[:, :, -1], sigmas[-1], log_factor)

    def finish(last: Tensor) -> Tensor:
        return torch.cat([path[:, :, :steps], last[:, :, None], path[:, :, steps + 1 :]], 2)

    return step, distribution.units(path), finish


def _midpoints(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Midpoint rule from `low` to `high [batch, node, 1]`: points and their weights, `[batch, node, POINTS]` each."""
    share = (torch.arange(POINTS, dtype=low.dtype, device=low.device) + 0.5) / POINTS
    width = (high - low).clamp(min=0)
    return low + width * share, (width / POINTS).expand(*low.shape[:2], POINTS)


def _normal(z: Tensor) -> Tensor:
    return torch.exp(-z * z / 2) / (2 * torch.pi) ** 0.5


TAUS = {"paper": 1.0, "released": 42.0**2}  # the published constants, by name
POWERS = {"none": 0, "paper": 1, "released": -1}  # power of the paper's factor F, by option


@dataclass(frozen=True)
class TemperedOptions:
    tau: Annotated[float, Field(ge=1)] | Literal["paper", "released"] = option(
        42.0, "divides the exponent; paper: 1, which is exact, released: 1764, which accepts and alters more"
    )
    factor: Literal["none", "paper", "released"] = option(
        "paper", "the paper's factor of earlier steps, its inverse, or none, which is exact"
    )
    tries: Annotated[int, Field(ge=1, le=10_000)] = option(
        100, "most tries for what a refused draft leaves; then a sample of the target's own"
    )
    measure: bool = option(True, "compute the bias of every token; False saves time: no bias is then reported")


class Tempered(DraftsAfresh):
    exactness: str = TEMPERED.exactness
    needs, offers = TEMPERED.needs, TEMPERED.offers

    def __init__(self, options: TemperedOptions = TemperedOptions()) -> None:
        self.options = options
        self.tau = TAUS[options.tau] if isinstance(options.tau, str) else options.tau

    def bind(self, target: Target) -> None:
        """Refuse heads without steps, which mixtures are."""
        refuse_mixtures(target, "tempered", "tests the last step")

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        distribution, noise = scores.distribution, round.fresh(draft.nodes)
        proposal = None
        if draft.nodes > 1 and draft.distribution is not None:
            proposal, follows = drawn_part(draft.distribution, draft.valid[:, 1:])
        if proposal is None:
            drawn = distribution.draw(noise)
            return self._measured(walk(draft, drawn, distribution.units(drawn)), None, None)
        step, free, finish = up_to_last_step(distribution, proposal, follows, noise, POWERS[self.options.factor])
        x, nodes = draft.drafted, torch.arange(draft.nodes - 1, device=free.device)
        log_coin = torch.log(noise.substream(Substream.COIN).uniform())[:, :-1]
        accepted = follows & (log_coin < step.log_ratio(x, self.tau))
        tested = where_nodes(accepted, x, step.residual(noise.at(nodes[None]), self.options.tries))
        last = torch.cat([where_nodes(follows, tested, free[:, :-1]), free[:, -1:]], 1)
        verdict = walk_where(draft, accepted, finish(last), last)
        # A draw after the last accepted node is the next draft and must have the distribution that this draft reports;
        # else it would add a bias that is not measured. There the last step is coupled exactly.
        exact = reflect(x, step.draft, step.mean, step.sigma, log_coin)
        behind = follows & (nodes > verdict.length[:, None])
        last = torch.cat([where_nodes(behind, exact, last[:, :-1]), last[:, -1:]], 1)
        reached = follows & (nodes <= verdict.length[:, None])
        return self._measured(replace(verdict, drawn=finish(last)), step, reached)

    def _measured(self, verdict: Verdict, step: LastStep | None, reached: Tensor | None) -> Verdict:
        """The verdict with the bias of the tested nodes `reached [batch, node - 1]` by the walk; 0 elsewhere."""
        if not self.options.measure:
            return verdict
        if step is None or reached is None:
            device = verdict.drawn.device
            nothing = torch.zeros(verdict.drawn.shape[:2], dtype=widest(device), device=device)
            return replace(verdict, tv=nothing, excess_acceptance=nothing)
        tv, excess_acceptance = (
            torch.nn.functional.pad(torch.where(reached, values, 0.0), (0, 1))  # NaN where nothing was drafted
            for values in step.bias(self.tau, self.options.tries)
        )
        return replace(verdict, tv=tv, excess_acceptance=excess_acceptance)
