"""`tempered`: continuous speculative decoding as published. Lossy.

Wang et al. (arXiv 2411.11925): draft and target denoise with the same noise, and only the last step is tested. With
p = N(mean_p, sigma_0²) and q = N(mean_q, sigma_0²) there, the draft x ~ q is accepted with probability

    min(1, F exp((|x - mean_q|² - |x - mean_p|²) / (2 sigma_0² tau))),    F = prod_t |Sigma_q,t|^½ / |Sigma_p,t|^½,

where the product is over all steps but the last. A refused x leaves the residual (F p - q)+, which is drawn from by
rejection of y ~ p; after `tries` proposals the target's own sample is taken (the released code returns zeros).
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

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.distributions import drawn_part, reflect, where_nodes
from mmspec.core.noise import Round, Substream
from mmspec.core.protocols import Target
from mmspec.core.rules.rule import DraftsAfresh, walk, walk_where
from mmspec.core.transfer import widest
from mmspec.core.types import Draft, Scores, Verdict
from mmspec_continuous.rules.last_step import LastStep, up_to_last_step
from mmspec_continuous.specs import TEMPERED
from mmspec_continuous.targets.continuous import refuse_mixtures

TAUS = {"paper": 1.0, "released": 42.0**2}
"""The published constants, by name."""
POWERS = {"none": 0, "paper": 1, "released": -1}
"""Power of the paper's factor F, by option."""


@dataclass(frozen=True)
class TemperedOptions:
    tau: Annotated[float, Field(ge=1)] | Literal["paper", "released"] = field(
        default=42.0,
        metadata={
            "help": "divides the exponent; paper: 1, which is exact, released: 1764, which accepts and alters more"
        },
    )
    factor: Literal["none", "paper", "released"] = field(
        default="paper", metadata={"help": "the paper's factor of earlier steps, its inverse, or none, which is exact"}
    )
    tries: Annotated[int, Field(ge=1, le=10_000)] = field(
        default=100, metadata={"help": "most tries for what a refused draft leaves; then a sample of the target's own"}
    )
    measure: bool = field(
        default=True, metadata={"help": "compute the bias of every token; False saves time: no bias is then reported"}
    )


class Tempered(DraftsAfresh):
    exactness: str = TEMPERED.exactness
    needs, offers = TEMPERED.needs, TEMPERED.offers

    def __init__(self, options: TemperedOptions = TemperedOptions()) -> None:
        self.options = options
        self.tau = TAUS[options.tau] if isinstance(options.tau, str) else options.tau

    def bind(self, target: Target) -> None:
        """Refuse heads without steps.

        Raises:
            ValueError: The target's head is a mixture.
        """
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
