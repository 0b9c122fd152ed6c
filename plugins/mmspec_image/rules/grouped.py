"""`grouped`: accept a draft by the probability of a group of similar codes. Lossy.

Grouped speculative decoding (So et al., ICCV 2025, arXiv 2508.07747): codes of similar probability and embedding are
interchangeable. Sort the codes by p; G(x) are the neighbours of x in that order, without those whose probability
differs from x's by `difference` or more, or whose embedding is at squared distance `distance` or more. x is
accepted with probability min(1, p(G) / q(G)); a rejected draft is replaced by a draw from norm((p - q)+).
Guarantee: none; with `size=1` it is `rejection`. G(x) depends on x and p, so that groups overlap and are no partition:
the rule is biased, and may even accept less than `rejection`. `bias.py` computes the bias.
Knobs: `size` (larger: accepts more, alters more), `difference` and `distance` (smaller: nearer to exact), `measure`.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.noise import Round
from mmspec.core.rules.rule import DraftsAfresh
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.registry.options import option
from mmspec_image.rules.relax import Codes, Group, Groups, excess, relax, signed
from mmspec_image.specs import GROUPED


@dataclass(frozen=True)
class GroupedOptions:
    size: Annotated[int, Field(ge=1, le=256)] = option(
        14, "codes of a group; 1 is exact, more accept more and alter more"
    )
    difference: Annotated[float, Field(ge=0, le=1)] = option(
        0.15, "largest |p(y) - p(x)| inside a group; smaller is nearer to exact"
    )
    distance: Annotated[float, Field(ge=0)] = option(
        0.5, "largest squared distance of embeddings inside a group; 0 is exact"
    )
    measure: bool = option(True, "compute the bias of every unit; False saves time, the report then has no bias")


class Grouped(DraftsAfresh):
    exactness: str = GROUPED.exactness
    needs, offers = GROUPED.needs, GROUPED.offers

    def __init__(self, options: GroupedOptions = GroupedOptions()) -> None:
        self.options = options
        self.measure = options.measure
        self._codes: Codes | None = None

    def bind(self, target: Any) -> None:
        """Take the vectors of the target's codes: of a language model the embeddings, as in the released code."""
        self._codes = Codes.of(target, embeddings=True)

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        return relax(self, draft, scores, round)

    def groups(self, probs: Tensor) -> Groups:
        """Groups: the unit itself, then its neighbours in the order of p, half of them above, half below."""
        assert self._codes is not None, "the rule was not bound to a target"
        codes, difference, vocab = self._codes, self.options.difference, probs.shape[-1]
        ranked = probs.argsort(stable=True, dim=-1)
        places = torch.arange(vocab, device=probs.device)
        rank = torch.zeros_like(ranked).scatter_(-1, ranked, places.expand_as(ranked))
        half = self.options.size // 2
        neighbours = torch.arange(-half, self.options.size - half, device=probs.device).roll(-half)  # 0 comes first

        def of(x: Tensor) -> Group:
            at = rank.gather(-1, x)[..., None] + neighbours  # [batch, node, unit, size]
            ids = ranked.gather(-1, at.clamp(0, vocab - 1).flatten(2)).reshape(at.shape)
            near = (probs.gather(-1, ids.flatten(2)).reshape(at.shape) - probs.gather(-1, x)[..., None]).abs()
            alike = codes.apart(x[..., None], ids) < self.options.distance
            inside = (at >= 0) & (at < vocab) & (near < difference) & alike
            return Group(ids, inside | (neighbours == 0))

        return of

    def against(self, group: Group, draft: Tensor, x: Tensor) -> Tensor:
        return group.mass(draft)

    def left(self, probs: Tensor, draft: Tensor, group: Group) -> Tensor:
        """The residual (p - q)+, not normalised."""
        return (probs - draft).clamp(min=0)

    def bias(self, probs: Tensor, draft: Tensor, x: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
        """Total variation and excess acceptance by the identity of `bias.py`."""
        assert self._codes is not None
        e = excess(probs, draft, groups, self.options.size * self._codes.vectors.shape[1], self.against)
        return signed(e, probs, draft), e.sum(-1)
