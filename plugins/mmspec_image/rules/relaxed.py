"""`relaxed`: accept a draft for the mass of codes that look like it. Lossy.

LANTERN (Jang et al., arXiv 2410.03355) and LANTERN++ (2502.06352): A(x) are the codes nearest to x in the codebook, as
many as their mass stays within a bound: δ (LANTERN), or (λ - 1) p(x) (LANTERN++, `lam`). x is kept with probability
min(1, (p(x) + P(A)) / q(x)). The bound holds for each x apart; it does not bound the bias of the output.
Guarantee: none but this: with `k=0`, `delta=0` or `lam=1` it is `rejection`.
Knobs: `k`, `delta`, `lam` (larger: accepts more, alters more), `residual` (`plain`: (p - q)+; `paper`: with the mass of
A moved onto x).
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmspec_image.rules.relaxing import Group, Relaxing


@dataclass(frozen=True)
class RelaxedOptions:
    """Options of `relaxed`."""

    k: Annotated[int, Field(ge=0)] = field(
        default=10, metadata={"help": "nearest codes that may stand in; 0 is exact, more accept more and alter more"}
    )
    delta: Annotated[float, Field(ge=0, le=1)] = field(
        default=0.1, metadata={"help": "most mass of the codes that stand in; 0 is exact, larger alters more"}
    )
    lam: Annotated[float, Field(ge=1)] | None = field(
        default=None, metadata={"help": "bound that mass by (lam - 1) p(x) instead of delta; 1 is exact"}
    )
    residual: Literal["plain", "paper"] = field(
        default="plain", metadata={"help": "what a refused draft leaves: (p - q)+, or the paper's"}
    )


class Relaxed(Relaxing):
    """See the module.

    Args:
        options: Which codes stand in.
    """

    needs = Relaxing.needs | {"codebook"}

    def __init__(self, options: RelaxedOptions = RelaxedOptions()) -> None:
        self.options = options
        self._nearest: Tensor | None = None

    def bind(self, target: Any) -> None:
        """Rank the nearest codes of every code, once."""
        self._nearest = nearest(target.codebook, min(self.options.k, len(target.codebook) - 1))

    def group(self, probs: Tensor, x: Tensor) -> Group:
        """The unit itself, then the nearest codes as far as their mass is within the bound."""
        assert self._nearest is not None, "the rule was not bound to a target"
        ids = self._nearest[x]  # [batch, node, k]
        own = probs.gather(-1, x[..., None])
        bound = self.options.delta if self.options.lam is None else (self.options.lam - 1) * own
        inside = probs.gather(-1, ids).cumsum(-1) <= bound
        strict = self.options.delta == 0 if self.options.lam is None else self.options.lam == 1
        inside &= not strict  # codes without mass would add nothing, and stand in the paper's residual
        return Group(
            torch.cat([x[..., None], ids], -1), torch.cat([torch.ones_like(own, dtype=torch.bool), inside], -1)
        )

    def left(self, probs: Tensor, group: Group, draft: Tensor) -> Tensor:
        if self.options.residual == "plain":
            return super().left(probs, group, draft)
        moved = probs.scatter(-1, group.ids, probs.gather(-1, group.ids) * ~group.inside)
        moved = moved.scatter(-1, group.ids[..., :1], group.mass(probs)[..., None])
        return (moved - draft).clamp(min=0)


def nearest(codebook: Tensor, k: int) -> Tensor:
    """The `k` codes nearest to each code of `codebook [vocab, width]`, itself left out: `[vocab, k]`."""
    apart = torch.cdist(codebook.float(), codebook.float())
    apart.fill_diagonal_(float("inf"))
    return apart.topk(k, largest=False).indices
