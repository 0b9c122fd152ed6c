"""Bugs of Jacobi windows: units that are kept from the last pass are reported with another distribution."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, Gaussian, dense, take_nodes, where_nodes
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.noise import Noise, Round, Substream
from mmspec.core.rules import Match, Rejection, walk
from mmspec.core.state import State
from mmspec.core.types import Draft, Scores, Step, Verdict
from tests.support.mutants.mutant import SCD, SJD, Mutant, both, replacing


def _keep_old_distribution(state: State, step: Step, kept: Tensor) -> None:
    """After `observe`: slots of the drafted units `kept [batch, node - 1]` get the distribution of their draft."""
    window, draft, distribution = state.memory, step.draft, step.scores.distribution
    if window.distribution is None or draft.nodes == 1:
        return
    old = dense(draft.distribution, draft.drafted, distribution.size)  # type: ignore[attr-defined]
    source = step.count[:, None] + torch.arange(draft.nodes - 1)  # slot j is the unit drawn at node source
    edge = source.clamp(max=draft.nodes - 2)
    stale = kept.gather(1, edge) & (source < draft.nodes - 1)
    state.memory = replace(
        window, distribution=Categorical(where_nodes(stale, take_nodes(old, edge), window.distribution.probs))
    )


def _stale_q(original: Callable) -> Callable:
    def observe(self: Jacobi, state: State, step: Step) -> None:
        original(self, state, step)
        _keep_old_distribution(state, step, step.verdict.drawn[:, :-1] == step.draft.drafted)

    return observe


def _stale_q_of_accepted(original: Callable) -> Callable:
    def observe(self: Jacobi, state: State, step: Step) -> None:
        original(self, state, step)
        same = (step.verdict.drawn[:, :-1] == step.draft.drafted) & step.draft.valid[:, 1:]
        _keep_old_distribution(state, step, same.cumprod(1).bool())

    return observe


def _shortest_of_four(original: Callable) -> Callable:
    def accept(self: Rejection, draft: Draft, scores: Scores, round: Round) -> Verdict:
        verdict = original(self, draft, scores, round)
        # Four rows in turn stand for a batch; a finished row has no draft and does not count.
        length = torch.where(draft.valid[:, 1:].any(1), verdict.length, draft.nodes)
        shortest = torch.minimum(length.unflatten(0, (-1, 4)).amin(1).repeat_interleave(4), verdict.length)
        return replace(verdict, length=shortest, unit=take_nodes(verdict.drawn, shortest[:, None])[:, 0])

    return accept


def _independent_redraw(original: Callable) -> Callable:
    def couple(self: Categorical, draft: Any, x: Tensor, noise: Noise, follows: Tensor) -> Tensor:
        keep = noise.substream(Substream.COIN).uniform() * draft.of(x) < self.of(x)
        return torch.where(keep & follows, x, self.draw(noise.where(follows, Substream.RESIDUAL)))

    return couple


def _with_a_little_more(original: Callable) -> Callable:
    return lambda self, draft: original(self, draft) + 1e-10


def _stale_mean(original: Callable) -> Callable:
    def observe(self: Jacobi, state: State, step: Step) -> None:
        original(self, state, step)
        window, draft = state.memory, step.draft
        if window.distribution is None or not isinstance(draft.distribution, Gaussian):
            return
        source = step.count[:, None] + torch.arange(draft.nodes - 1)
        before = take_nodes(draft.distribution.mean, source.clamp(max=draft.nodes - 2))
        stale = source < draft.nodes - 1
        state.memory = replace(
            window,
            distribution=Gaussian(where_nodes(stale, before, window.distribution.mean), window.distribution.sigma),
        )

    return observe


def _argmax_accepted(original: Callable) -> Callable:
    def accept(self: Match, draft: Draft, scores: Scores, round: Round) -> Verdict:
        drawn = original(self, draft, scores, round).drawn
        best = dense(scores.distribution, drawn, scores.distribution.size).argmax(-1)  # type: ignore[attr-defined]
        filler = (best[:, :-1] == draft.drafted) & draft.valid[:, 1:]
        drawn = torch.cat([torch.where(filler, draft.drafted, drawn[:, :-1]), drawn[:, -1:]], 1)
        return walk(draft, drawn, drawn)

    return accept


def _shifted(original: Callable) -> Callable:
    def observe(self: Jacobi, state: State, step: Step) -> None:
        original(self, state, step)
        window = state.memory
        if window.distribution is not None and window.units.shape[1]:
            slot = (torch.arange(window.units.shape[1]) - 1).clamp(min=0)
            state.memory = replace(window, distribution=window.distribution.take(slot[None]))

    return observe


MUTANTS = (
    Mutant(
        "stale-q-after-partial-commit",
        "units that were kept right of the first rejection keep the distribution of their first draw, not the pass's",
        f"{SCD}, the released code for Lumina-mGPT; measured χ²/df 8.6",
        replacing(Jacobi, "observe", _stale_q),
    ),
    Mutant(
        "batch-minimum-truncation-with-stale-q",
        "all rows are cut to the shortest accepted length; what longer rows had accepted keeps its old distribution",
        f"{SJD}, the released code at batch sizes above 1",
        both(
            replacing(Rejection, "accept", _shortest_of_four),
            replacing(Jacobi, "observe", _stale_q_of_accepted),
        ),
    ),
    Mutant(
        "independent-redraw-committed-at-first-mismatch",
        "at the first mismatch an independent draw from p is emitted instead of the residual's",
        f"{SCD}, the released code for Cosmos without maximal coupling; measured χ²/df 48",
        replacing(Categorical, "couple", _independent_redraw),
    ),
    Mutant(
        "epsilon-in-the-residual",
        "1e-10 is added to the residual before it is normalised, so that units of probability 0 may come out",
        f"{SCD}, the released code for Cosmos; a leak of 6e-6 over 64,000 codes",
        replacing(Categorical, "residual", _with_a_little_more),
    ),
    Mutant(
        "stale-mean-in-the-continuous-window",
        "a Gaussian window is coupled with the mean of the pass before the one that drew the unit",
        f"{SJD} carried over to Gaussian tokens: q must be that of the last pass",
        replacing(Jacobi, "observe", _stale_mean),
    ),
    Mutant(
        "distribution-of-the-slot-to-the-left",
        "the window's units move with the commit, their distributions lag by one slot",
        f"{SCD}, the released code: Gumbel rows that are not shifted with the window",
        replacing(Jacobi, "observe", _shifted),
    ),
    Mutant(
        "filler-accepted-by-argmax",
        "sampled units are not compared with a draft that is the target's likeliest unit: it is accepted",
        "the released code of Saguaro (arXiv 2603.03251), after an outcome that nothing was drafted for",
        replacing(Match, "accept", _argmax_accepted),
    ),
)
