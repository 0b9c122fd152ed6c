"""`grouped`: accept a draft for the company it keeps. Lossy.

Grouped speculative decoding (So et al., ICCV 2025, arXiv 2508.07747): near-equal codes stand for each other, so x is
kept with probability min(1, P(G) / Q(G)), G the codes next to x in the order of p, less those whose probability or
embedding is too far from that of x. Refused drafts leave the ordinary residual.
Guarantee: none but this: with `size=1` it is `rejection`.
Knobs: `size` (more: accepts more, alters more), `difference` and `distance` (smaller: nearer to exact).
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec_image.rules.relaxing import Group, Relaxing


@dataclass(frozen=True)
class GroupedOptions:
    """Options of `grouped`."""

    size: Annotated[int, Field(ge=1, le=256)] = field(
        default=14, metadata={"help": "codes of a group; 1 is exact, more accept more and alter more"}
    )
    difference: Annotated[float, Field(ge=0, le=1)] = field(
        default=0.15, metadata={"help": "largest |p(y) - p(x)| inside a group; smaller is nearer to exact"}
    )
    distance: Annotated[float, Field(ge=0)] = field(
        default=0.5, metadata={"help": "largest squared distance of embeddings inside a group; 0 is exact"}
    )


class Grouped(Relaxing):
    """See the module.

    Args:
        options: What a group is.
    """

    needs = Relaxing.needs | {"codebook"}
    example = "mmspec_image.example:grouped"

    def __init__(self, options: GroupedOptions = GroupedOptions()) -> None:
        self.options = options
        self._codebook: Tensor | None = None

    def bind(self, target: Any) -> None:
        """Take the target's embeddings of codes."""
        self._codebook = target.codebook

    def against(self, group: Group, draft: Tensor, x: Tensor) -> Tensor:
        return group.mass(draft)

    def group(self, probs: Tensor, x: Tensor) -> Group:
        """The unit itself, then its neighbours in the order of p: half of them above, half below."""
        ranked = probs.argsort(-1)
        rank = torch.zeros_like(ranked).scatter_(
            -1, ranked, torch.arange(probs.shape[-1], device=x.device).expand_as(ranked)
        )
        own = rank.gather(-1, x[..., None])
        half = self.options.size // 2
        offsets = [o for o in range(-half, self.options.size - half) if o]
        at = own + torch.tensor([0, *offsets], device=x.device)
        ids = ranked.gather(-1, at.clamp(0, probs.shape[-1] - 1))
        near = (probs.gather(-1, ids) - probs.gather(-1, x[..., None])).abs() < self.options.difference
        near &= self._distance(ids, x) < self.options.distance
        inside = (at >= 0) & (at < probs.shape[-1]) & near
        inside[..., 0] = True
        return Group(ids, inside)

    def _distance(self, ids: Tensor, x: Tensor) -> Tensor:
        """Squared distance of embeddings, `[batch, node, size]`."""
        assert self._codebook is not None, "the rule was not bound to a target"
        return (self._codebook[ids] - self._codebook[x][..., None, :]).square().sum(-1)
