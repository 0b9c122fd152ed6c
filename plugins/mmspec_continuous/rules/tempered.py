"""`tempered`: continuous speculative decoding as published. Lossy.

Wang et al. (arXiv 2411.11925): draft and target denoise under the same noise, and only the last step is tested. Where
both have arrived, with p = N(mean_p, sigma_0²) and q = N(mean_q, sigma_0²), the draft x ~ q is kept with probability

    min(1, F exp((|x - mean_q|² - |x - mean_p|²) / (2 sigma_0² tau))),    F = prod_t |Sigma_q,t|^½ / |Sigma_p,t|^½,

over all steps but the last. A refused x leaves (F p - q)+, from which one draws by trying y ~ p; after `tries` the
target's own sample is taken (the release leaves zeros). The paper has tau = 1; the release divides by 42, and its F is
upside down. F is 1 where both chains have the same sigmas, as those of our models have; the paper's learn theirs.
Here the draft keeps the noise of its last step, or nothing could be tested (the release drafts the mean).
Guarantee: none. With `tau=1` and F = 1 it is exact, but for the share of refused drafts that no try hits: 0.4 percent
at most with 100 tries; with F, with its inverse, and with tau = 42 it is not. (`rejection`, which couples every step,
keeps more than a test of the last one with tau = 1.)
Measured: given the shared noise, the total variation of the last step. The bias of a token is at most the mean of
these, and that of a picture at most their sum; itself it cannot be measured: a token's density, over all noise, is not
known. What it does to pictures, the Fréchet distance of `mmspec bench continuous` tells.
Knobs: `tau` (larger: accepts more, alters more), `factor`, `tries` (fewer: a little more altered), `measure`.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.distributions import drawn_part, reflect, where_nodes
from mmspec.core.noise import DraftNoise, Round, Substream
from mmspec.core.rules.rule import walk, walk_where
from mmspec.core.types import Draft, Scores, Verdict
from mmspec_continuous.rules.heads import refuse_mixtures
from mmspec_continuous.rules.last_step import LastStep, met

POWERS = {"none": 0, "paper": 1, "released": -1}


@dataclass(frozen=True)
class TemperedOptions:
    """Options of `tempered`."""

    tau: Annotated[float, Field(ge=1)] = field(
        default=42.0, metadata={"help": "divides the exponent of the test; 1 is exact, more accepts and alters more"}
    )
    factor: Literal["none", "paper", "released"] = field(
        default="paper", metadata={"help": "the paper's factor of earlier steps, its inverse, or none, which is exact"}
    )
    tries: Annotated[int, Field(ge=1, le=10_000)] = field(
        default=100, metadata={"help": "most tries for what a refused draft leaves; then a sample of the target's own"}
    )
    measure: bool = field(
        default=True,
        metadata={"help": "compute the bias of every token; False saves time: no bias is then reported"},
    )


class Tempered:
    """See the module.

    Args:
        options: How the last step is tested.
    """

    exactness = "lossy"
    needs = frozenset({"continuous", "chain"})
    offers = frozenset({"redraw"})

    def __init__(self, options: TemperedOptions = TemperedOptions()) -> None:
        self.options = options

    def bind(self, target: Any) -> None:
        """Refuse heads without steps.

        Raises:
            ValueError: The target's head is a mixture.
        """
        refuse_mixtures(target, "tempered", "tests the last step")

    def draft_noise(self, round: Round) -> DraftNoise:
        return DraftNoise(round, shared=False)

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        distribution, noise = scores.distribution, round.fresh(draft.nodes)
        proposal = None
        if draft.nodes > 1 and draft.distribution is not None:
            proposal, follows = drawn_part(draft.distribution, draft.valid[:, 1:])
        if proposal is None:
            drawn = distribution.draw(noise)
            return self._measured(walk(draft, drawn, distribution.units(drawn)), None, None)
        step, free, finish = met(distribution, proposal, follows, noise, POWERS[self.options.factor])
        x, nodes = draft.drafted, torch.arange(draft.nodes - 1, device=free.device)
        log_coin = torch.log(noise.substream(Substream.COIN).uniform())[:, :-1]
        kept = follows & (log_coin < step.log_ratio(x, self.options.tau))
        tested = where_nodes(kept, x, step.residual(noise.at(nodes[None]), self.options.tries))
        last = torch.cat([where_nodes(follows, tested, free[:, :-1]), free[:, -1:]], 1)
        verdict = walk_where(draft, kept, finish(last), last)
        # Behind the end a draw has to have the distribution that the next draft reports, or it would be another bias
        # than the one that is measured: there the last step is coupled exactly.
        exact = reflect(x, step.draft, step.mean, step.sigma, log_coin)
        behind = follows & (nodes > verdict.length[:, None])
        last = torch.cat([where_nodes(behind, exact, last[:, :-1]), last[:, -1:]], 1)
        reached = follows & (nodes <= verdict.length[:, None])
        return self._measured(replace(verdict, drawn=finish(last)), step, reached)

    def _measured(self, verdict: Verdict, step: LastStep | None, reached: Tensor | None) -> Verdict:
        """With the bias of tested nodes that the walk came to, `reached [batch, node - 1]`; 0 elsewhere."""
        if not self.options.measure:
            return verdict
        if step is None or reached is None:
            nothing = torch.zeros(verdict.drawn.shape[:2], dtype=torch.float64, device=verdict.drawn.device)
            return replace(verdict, tv=nothing, excess_acceptance=nothing)
        tv, excess_acceptance = (
            torch.nn.functional.pad(torch.where(reached, values, 0.0), (0, 1))  # NaN where nothing was drafted
            for values in step.bias(self.options.tau, self.options.tries)
        )
        return replace(verdict, tv=tv, excess_acceptance=excess_acceptance)
