"""`fly`: accept what differs from the target's own unit where it hesitates, and agrees with what follows. Lossy.

FLy (Li et al., arXiv 2511.22972), training-free loosely speculative decoding. At every node the target's own unit y is
drawn. A drafted unit x that differs from it is accepted, too, where the entropy of the target's three likeliest units,
-Σ p log p by its unprocessed scores, is at least `entropy`, and each of the `window` - 1 drafted units that follow is
the target's own. Then the difference was one of wording; a real error would be corrected in what follows. A window ends
before the draft's last unit, as in the authors' code.
The paper decodes greedily. In sampled calls y is drawn from p, independently of the draft. Its drafter that is itself
drafted for by a lookup is not built here; every drafter of chains does.
Guarantee: none; with a large `entropy` it is greedy decoding, and the target's distribution in sampled calls. Given the
draft, with g = 1 where the target hesitates and m the probability that all units of the window are drawn, an emitted
unit is x with probability p(x) + (1 - p(x)) g m, and another unit y with p(y) (1 - g m): at total variation
(1 - p(x)) g m from p, which is measured. If units are drawn, its mean over drafts is no less than the bias.
Knobs: `entropy` (nats; smaller accepts more and alters more) and `window` (smaller, likewise). Drafts must be longer
than the window; the authors draft 15 units.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.distributions import Categorical
from mmspec.core.noise import Round
from mmspec.core.rules.rule import DraftsAfresh, walk_where
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.registry.options import option
from mmspec_zoo.specs import FLY

LIKELIEST = 3  # units over which the entropy is summed


@dataclass(frozen=True)
class FlyOptions:
    entropy: Annotated[float, Field(ge=0)] = option(
        0.3, "least entropy, in nats, where a unit may differ; smaller accepts more"
    )
    window: Annotated[int, Field(ge=2, le=64)] = option(
        6, "units that begin with one that differs; the others must agree; smaller alters more"
    )
    measure: bool = option(True, "compute the bias of every unit; False saves time, the report then has no bias")


class Fly(DraftsAfresh):
    exactness: str = FLY.exactness
    needs, offers = FLY.needs, FLY.offers

    def __init__(self, options: FlyOptions = FlyOptions()) -> None:
        self.options = options

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        distribution, there = scores.distribution, draft.valid[:, 1:]
        drawn = distribution.draw(round.fresh(draft.nodes))
        units = distribution.units(drawn)
        same = (units[:, :-1] == draft.drafted) & there
        hesitates = self._hesitates(scores)[:, :-1] & there
        agrees = _products(same.float(), there, self.options.window) > 0
        verdict = walk_where(draft, same | (hesitates & agrees), drawn, units)
        if not self.options.measure:
            return verdict
        x, own = draft.drafted[..., None], same.float()
        if isinstance(distribution, Categorical):
            own = distribution.on(None)[:, :-1].gather(-1, x)[..., 0] * there
        more = (1 - own) * hesitates * _products(own, there, self.options.window)
        return replace(verdict, tv=pad(more, (0, 1)), excess_acceptance=pad(more, (0, 1)))

    def _hesitates(self, scores: Scores) -> Tensor:
        """Where the target does, `[batch, node]` bool."""
        assert scores.unprocessed is not None, "the target is discrete"
        logs = scores.unprocessed.log_softmax(-1)
        best = logs.topk(min(LIKELIEST, logs.shape[-1]), -1).values
        return -(best.exp() * best).sum(-1) >= self.options.entropy


def _products(own: Tensor, there: Tensor, window: int) -> Tensor:
    """For every unit of a chain (`there [batch, node]`), the product of `own [batch, node]` over the others of its
    window; 0 if it is cut off.
    """
    nodes = own.shape[1]
    behind = pad(own, (0, window))
    product = torch.ones_like(own)
    for place in range(1, window):
        product = product * behind[:, place : place + nodes]
    return product * pad(there, (0, window))[:, window:]
