"""The cache of the toy targets: the committed units themselves."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.types import Draft


@dataclass(kw_only=True)
class UnitsCache:
    """The cache of a toy whose scores are computed from its units."""

    units: Tensor  # `[batch, capacity, *unit]`: committed units, then scratch
    length: Tensor  # `[batch]`: how many units are committed
    width: int  # most nodes of a draft, root included
    draft: Draft | None = None  # the draft that the last pass scored

    def remember(self, draft: Draft) -> None:
        """Keep the draft of a pass until its commit."""
        assert draft.nodes <= self.width, f"{draft.nodes} nodes in a cache that was made for {self.width}"
        self.draft = draft

    def commit(self, path: Tensor, count: Tensor) -> None:
        """Keep the root and `count - 1` nodes of `path`, as `Target.commit` says. The last column is scratch."""
        assert self.draft is not None
        nodes = rooted_path(path)
        slot = torch.arange(nodes.shape[1])
        where = torch.where(slot < count[:, None], self.length[:, None] + slot, self.units.shape[1] - 1)
        self.units.scatter_(1, where, self.draft.units.gather(1, nodes))
        self.length = self.length + count


def rooted_path(path: Tensor) -> Tensor:
    """Node ids of the root (0) and of a path `[batch, depth]`, whose padding becomes 0: `[batch, depth + 1]`."""
    return torch.nn.functional.pad(path.clamp(min=0), (1, 0))
