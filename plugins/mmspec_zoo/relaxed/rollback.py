"""`rollback`: accept a drafted unit unless the target finds it very unlikely. Lossy.

BiLD, "big little decoder" (Kim et al., arXiv 2302.07863), its roll-back policy: a small model's units stay as they are
until the first whose cross entropy under the target, -log p(x), exceeds `threshold`; that one and all behind it are
replaced by the target's own. A unit that the target would have written itself is never rolled back. (The released code
looks at the first unit above the threshold only: if that is the target's own, units behind it stay however unlikely
they are.)
The paper decodes greedily. In sampled calls a unit that is rolled back is drawn anew from p, independently of the
draft; it stays if it is drawn again.
Guarantee: none; with `threshold=0` it is greedy decoding, and the target's distribution in sampled calls. With S the
units of cross entropy at most `threshold`, q the draft's distribution and Q(S) its mass there, an emitted unit has the
distribution q on S plus (1 - Q(S)) p, which is at total variation ½ ‖q·1_S - Q(S) p‖₁ from p.
Knobs: `threshold` (nats; higher accepts more and alters more; the paper tries 2 to 5).
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.distributions import Categorical, dense
from mmspec.core.noise import Round
from mmspec.core.rules.rule import DraftsAfresh, walk_where
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.registry.options import option
from mmspec_zoo.relaxed.typical import variation
from mmspec_zoo.specs import ROLLBACK


@dataclass(frozen=True)
class RollbackOptions:
    threshold: Annotated[float, Field(ge=0)] = option(
        2.0, "largest cross entropy of a unit that stays, in nats; 0 is exact"
    )
    measure: bool = option(True, "compute the bias of every unit; False saves time, the report then has no bias")


class Rollback(DraftsAfresh):
    exactness: str = ROLLBACK.exactness
    needs, offers = ROLLBACK.needs, ROLLBACK.offers

    def __init__(self, options: RollbackOptions = RollbackOptions()) -> None:
        self.options = options

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        distribution = scores.distribution
        drawn = distribution.draw(round.fresh(draft.nodes))
        units, x = distribution.units(drawn), draft.drafted[..., None]
        stays = self._stays(scores)[:, :-1]
        accepted = stays.gather(-1, x)[..., 0] | (units[:, :-1] == draft.drafted)
        verdict = walk_where(draft, accepted, drawn, units)
        if not self.options.measure:
            return verdict
        p = dense(distribution, units, stays.shape[-1])[:, :-1]
        tv, excess = bias(p, dense(draft.distribution, draft.drafted, stays.shape[-1]), stays)
        there = draft.valid[:, 1:]  # NaN where nothing was drafted
        tv, excess = (torch.nn.functional.pad(torch.where(there, each, 0.0), (0, 1)) for each in (tv, excess))
        return replace(verdict, tv=tv, excess_acceptance=excess)

    def _stays(self, scores: Scores) -> Tensor:
        """The set S behind every node: `[batch, node, vocab]` bool. Of a greedy call p is the softmax of the scores."""
        distribution = scores.distribution
        if isinstance(distribution, Categorical):
            logs = distribution.on(None).log()
        else:
            assert scores.logits is not None, "the target is discrete"
            logs = scores.logits.log_softmax(-1)
        return -logs <= self.options.threshold


def bias(p: Tensor, q: Tensor, stays: Tensor) -> tuple[Tensor, Tensor]:
    """Total variation of an emitted unit from p, and acceptance above an exact rule's: `[batch, node]` each.

    All are `[batch, node, vocab]`: p, which is one unit of a greedy call; the draft's q; and the set S, bool.
    """
    tv, mass = variation(p, q, stays)
    return tv, mass + (q * ~stays * p).sum(-1) - torch.minimum(p, q).sum(-1)
