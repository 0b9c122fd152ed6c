"""`typical`: accept a drafted unit that is likely enough for how much the target hesitates. Lossy.

Medusa's typical acceptance (Cai et al., arXiv 2401.10774, § 2.3.1), by which Hydra (2402.05109) decodes, too. Behind a
node with the target's distribution p and its entropy H, the drafted unit x is accepted if p(x) > min(ε, δ exp(-H)).
The longest accepted path is taken, of equally long ones the likeliest; the unit behind it is drawn from p.
Where the target is sure, only its own unit passes, and greedy decoding stays as it is.
Guarantee: none; with ε = 0 or δ = 0 all that has any probability is accepted, with ε = 1 and a large δ nothing. Of a
chain whose units are drawn from q, with Q(S) the mass that q has where p passes, an emitted unit has the distribution
q·1_S + (1 - Q(S)) p. Of a tree the bias is measured given its units: 1 - p(x) where a child passes, and 0 where none
does; if units are drawn, its mean over drafts is no less than the bias.
Knobs: `epsilon` (ε) and `delta` (δ); smaller ones accept more and alter more. The authors use 0.09 and its root, 0.3.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.distributions import Categorical, dense, take_nodes
from mmspec.core.noise import Round
from mmspec.core.rules.rule import DraftsAfresh, walk, walk_where
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.registry.options import option
from mmspec_zoo.specs import TYPICAL


@dataclass(frozen=True)
class TypicalOptions:
    epsilon: Annotated[float, Field(ge=0, le=1)] = option(
        0.09, "probability above which a unit passes; smaller accepts more and alters more"
    )
    delta: Annotated[float, Field(ge=0)] = option(
        0.3, "the same, as a factor of exp(-entropy), where the target hesitates"
    )
    measure: bool = option(True, "compute the bias of every unit; False saves time, the report then has no bias")


class Typical(DraftsAfresh):
    exactness: str = TYPICAL.exactness
    needs, offers = TYPICAL.needs, TYPICAL.offers

    def __init__(self, options: TypicalOptions = TypicalOptions()) -> None:
        self.options = options

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        distribution, parent = scores.distribution, draft.index.parent[:, 1:].expand(len(draft.units), -1)
        drawn = distribution.draw(round.fresh(draft.nodes))
        units = distribution.units(drawn)
        none = torch.zeros_like(draft.valid, dtype=torch.float32)
        if not isinstance(distribution, Categorical) or draft.nodes == 1:  # p of a greedy call is one unit
            verdict = walk(draft, drawn, units)
            return replace(verdict, tv=none, excess_acceptance=none) if self.options.measure else verdict
        p = distribution.on(None)
        passes = p > self.bound(p)[..., None]
        above, x = take_nodes(p, parent), draft.drafted[..., None]
        own = above.gather(-1, x)[..., 0]  # [batch, node - 1]: p(x) behind the parent
        accepted = take_nodes(passes, parent).gather(-1, x)[..., 0] & draft.valid[:, 1:]
        logs = torch.nn.functional.pad(own.clamp(min=torch.finfo(own.dtype).tiny).log(), (1, 0))
        likely = (draft.index.ancestor * logs[:, None]).sum(-1)  # of the path to every node
        verdict = walk_where(draft, accepted, drawn, units, likely)
        if not self.options.measure:
            return verdict
        if draft.index.is_chain:
            q = dense(draft.distribution, draft.drafted, p.shape[-1])
            tv, mass = variation(above, q, passes[:, :-1])
            excess = mass - torch.minimum(above, q).sum(-1)
            there = draft.valid[:, 1:]  # NaN where nothing was drafted
            tv, excess = (torch.nn.functional.pad(torch.where(there, each, 0.0), (0, 1)) for each in (tv, excess))
            return replace(verdict, tv=tv, excess_acceptance=excess)
        children = none.scatter_add(1, parent, own * draft.valid[:, 1:])  # p of all children of a node
        some = none.scatter_add(1, parent, accepted.float()) > 0
        taken = verdict.path.clamp(min=1) - 1
        on_path = none[:, 1:].scatter_add(1, taken, (verdict.path > 0).float())
        tv = none.scatter_add(1, parent, on_path * (1 - own))
        return replace(verdict, tv=tv, excess_acceptance=torch.where(some, 1 - children, 0.0))

    def bound(self, p: Tensor) -> Tensor:
        """The threshold that the probability of a unit must exceed, `[…]`, for distributions `[…, vocab]`."""
        entropy = torch.special.entr(p).sum(-1)
        return (self.options.delta * (-entropy).exp()).clamp(max=self.options.epsilon)


def variation(p: Tensor, q: Tensor, passes: Tensor) -> tuple[Tensor, Tensor]:
    """Of a unit that is x ~ q where x passes, and drawn from p elsewhere: its total variation from p, and how often it
    passes, `[batch, node]` each. Arguments are `[batch, node, vocab]`.
    """
    inside = q * passes
    mass = inside.sum(-1, keepdim=True)
    return (inside - mass * p).abs().sum(-1) / 2, mass[..., 0]
