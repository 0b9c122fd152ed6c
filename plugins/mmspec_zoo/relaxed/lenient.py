"""`lenient`: speculative sampling that takes a draft for less than it is worth. Lossy.

DistillSpec (Zhou et al., arXiv 2310.08461) trades quality for speed by a lenience ε: a drafted unit x ~ q stays with
probability min(1, p(x) / (ε q(x))); where it does not, a unit is drawn from the normalised (p / ε - q)+. The paper's
text could not be read here: this is the lenience of Leviathan et al. (2211.17192, appendix A.5), which divides p.
Guarantee: none, but a bound: an emitted unit has the distribution min(q, p / ε) + (1 - α) r, with the residual r and
α = Σ min(q, p / ε), so that no unit is more than 1 / ε times as likely as under p. Of greedy calls, where p is one
unit, the output is greedy decoding's.
Knobs: `epsilon` (ε; smaller accepts more and alters more; 1 is speculative sampling).
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.distributions import Categorical, dense
from mmspec.core.noise import Round
from mmspec.core.rules.rule import DraftsAfresh, walk
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.registry.options import option
from mmspec_zoo.specs import LENIENT


@dataclass(frozen=True)
class LenientOptions:
    epsilon: Annotated[float, Field(gt=0, le=1)] = option(
        0.5, "what a draft counts, as a share of its probability; smaller accepts more and alters more, 1 is exact"
    )
    measure: bool = option(True, "compute the bias of every unit; False saves time, the report then has no bias")


class Lenient(DraftsAfresh):
    exactness: str = LENIENT.exactness
    needs, offers = LENIENT.needs, LENIENT.offers

    def __init__(self, options: LenientOptions = LenientOptions()) -> None:
        self.options = options

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        distribution, noise = scores.distribution, round.fresh(draft.nodes)
        drawn, none = distribution.draw(noise), torch.zeros_like(draft.valid, dtype=torch.float32)
        if not isinstance(distribution, Categorical) or draft.nodes == 1:  # p of a greedy call is one unit
            verdict = walk(draft, drawn, distribution.units(drawn))
            return replace(verdict, tv=none, excess_acceptance=none) if self.options.measure else verdict
        p, there = distribution.on(None)[:, :-1], draft.valid[:, 1:]
        q = dense(draft.distribution, draft.drafted, p.shape[-1])
        nodes, lenient = torch.arange(draft.nodes - 1, device=p.device)[None], p / self.options.epsilon
        coupled = Categorical(lenient).couple(Categorical(q), draft.drafted, noise.at(nodes))
        drawn = torch.cat([torch.where(there, coupled, drawn[:, :-1]), drawn[:, -1:]], 1)
        verdict = walk(draft, drawn)
        if not self.options.measure:
            return verdict
        bias = (torch.nn.functional.pad(torch.where(there, each, 0.0), (0, 1)) for each in variation(p, q, lenient))
        tv, excess = bias
        return replace(verdict, tv=tv, excess_acceptance=excess)


def variation(p: Tensor, q: Tensor, lenient: Tensor) -> tuple[Tensor, Tensor]:
    """Of a unit that is taken from q by p / ε: its total variation from p, and acceptance above an exact rule's,
    `[batch, node]` each. Arguments are `[batch, node, vocab]`.
    """
    kept, residual = torch.minimum(q, lenient), (lenient - q).clamp(min=0)
    alpha = kept.sum(-1, keepdim=True)
    left = (1 - alpha).clamp(min=0) * residual / residual.sum(-1, keepdim=True).clamp(min=1e-12)
    return (kept + left - p).abs().sum(-1) / 2, alpha[..., 0] - torch.minimum(p, q).sum(-1)
