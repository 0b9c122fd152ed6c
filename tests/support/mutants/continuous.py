"""Bugs of continuous tokens: what the published continuous speculative decoding changes in an exact rule."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import Trajectory, chain, mixture_coupling, take_nodes, where_nodes
from mmspec.core.distributions.mixture_density import MixtureDensity
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.noise import Noise
from mmspec.core.philox import PhiloxNoise
from mmspec.core.state import State
from mmspec.core.types import Step
from tests.support.mutants.mutant import CSD, SJD, Mutant, replacing

TRIES = 100


def _with_factor(power: int) -> Callable[[Callable], Callable]:
    """The accepted ratio is multiplied by |Sigma_q|^½ / |Sigma_p|^½ of an earlier step, or by its inverse."""

    def make(original: Callable) -> Callable:
        def by_density(p: MixtureDensity, q: MixtureDensity, x: Tensor, log_coin: Tensor, *rest: Any) -> Tensor:
            log_factor = (q.scales.log() - p.scales.log()).mean(2).sum(-1)
            return original(p, q, x, log_coin - power * log_factor, *rest)

        return by_density

    return make


def _tempered(original: Callable) -> Callable:
    """u < ratio^(1/1764) is u^1764 < ratio."""
    return lambda off, apart, bound: original(off, apart, 42**2 * bound)


def _means_for_draws(original: Callable) -> Callable:
    def draw(self: Trajectory, noise: Noise) -> Tensor:
        draws, steps = original(self, noise), self.schedule.steps
        return torch.cat([draws[:, :, :steps], draws[:, :, -1:], draws[:, :, steps + 1 :]], 2)

    return draw


def _stale_means(original: Callable) -> Callable:
    def observe(self: Jacobi, state: State, step: Step) -> None:
        original(self, state, step)
        window, draft = state.memory, step.draft
        if not isinstance(window.distribution, Trajectory) or not isinstance(draft.distribution, Trajectory):
            return
        source = step.count[:, None] + torch.arange(draft.nodes - 1)
        at, steps = source.clamp(max=draft.nodes - 2), window.distribution.schedule.steps
        same = (step.scores.distribution.units(step.verdict.drawn)[:, :-1] == draft.drafted).all(-1).gather(1, at)
        before = take_nodes(draft.distribution.means, at)
        means = where_nodes(same & (source < draft.nodes - 1), before, window.distribution.means)
        draws = torch.cat([window.distribution.draws[:, :, : steps + 1], means], 2)
        state.memory = replace(window, distribution=Trajectory(draws, window.distribution.schedule))

    return observe


def _zeros_after_a_hundred(original: Callable) -> Callable:
    def with_residual(
        p: MixtureDensity, q: MixtureDensity, x: Tensor, refused: Tensor, key: Tensor, slack: float
    ) -> Tensor:
        where = refused.nonzero(as_tuple=True)
        p, q, key = p.at(*where), q.at(*where), key[where]
        zero = torch.zeros_like(key[:, :1])
        e = PhiloxNoise(key, zero[:1], zero).exponential(TRIES * (p.numbers + 1)).unflatten(-1, (TRIES, -1))
        y = p.drawn(e[..., 1:])
        taken = (-e[..., 0] > q.log_density(y) - p.log_density(y))[:, 0]
        first = y[torch.arange(len(y)), 0, taken.int().argmax(-1)]
        return x.index_put(where, torch.where(taken.any(-1, keepdim=True), first, 0.0).to(x.dtype))

    return with_residual


MUTANTS = (
    Mutant(
        "sigma-factor-in-the-acceptance",
        "the density ratio of the last step is multiplied by the ratio of an earlier step's standard deviations",
        f"{CSD}, the paper; measured KS distance 0.145",
        replacing(mixture_coupling, "_by_density", _with_factor(1)),
    ),
    Mutant(
        "inverse-sigma-factor-in-the-acceptance",
        "the inverse of that factor",
        f"{CSD}, the released code; measured KS distance 0.097",
        replacing(mixture_coupling, "_by_density", _with_factor(-1)),
    ),
    Mutant(
        "tempered-acceptance",
        "the exponent of the acceptance is divided by 42 squared, the residual is not",
        f"{CSD}, the released code",
        replacing(chain, "mirror", _tempered),
    ),
    Mutant(
        "mean-drafted-as-a-draw",
        "the mean of the last step is drafted, and reported as a draw from the distribution around it",
        f"{CSD}, the released code",
        replacing(Trajectory, "draw", _means_for_draws),
    ),
    Mutant(
        "stale-means-in-the-denoising-window",
        "a token that was kept is coupled with the means of its first draw, not with those of the last pass",
        f"{SJD} carried over to denoising chains: q must be that of the last pass",
        replacing(Jacobi, "observe", _stale_means),
    ),
    Mutant(
        "residual-capped-at-zeros",
        "a residual draw that is not found in a hundred tries becomes zeros",
        f"{CSD}, the released code",
        replacing(mixture_coupling, "_with_residual", _zeros_after_a_hundred),
    ),
)
