"""The distribution of a draft's units, in buffers of one shape, which a captured round reads.

Drafts of one family share a captured round. A rule whose output does not depend on the draft (`invariant`) does not
read a draft's distribution, and neither does any rule where the target is greedy; such rounds have no family.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, Distribution, Grouped, Mixed, PointMass
from mmspec.core.rules.rule import Rule, draws_by_position
from mmspec.core.types import Draft


@dataclass(frozen=True)
class Family:
    random: bool  # whether units are drawn from a categorical distribution
    # Whether units are point masses that the draft's distribution marks as such; both: a window mixes them
    points: bool = False
    support: int | None = None  # ids of every node's sparse distribution; None: all of the vocabulary


WINDOW = Family(random=True, points=True)
"""The family of a window: new slots are point masses, until the first pass all of them."""


def takes(family: Family | None, other: Family | None) -> bool:
    """True if rounds of one family take drafts of another; a window's rounds take point masses alone, too."""
    return family == other or (family == WINDOW and (other is None or not other.random))


def family_of(draft: Draft, rule: Rule, sampled: bool, window: bool = False) -> Family | None:
    """The family of a draft; None if it has no distribution, or nobody reads it.

    `sampled` says that the target's units are drawn, and `window` that later drafts of the call have distributions.
    """
    if draws_by_position(rule) or not sampled:
        return None
    family = _found(draft.distribution)
    return WINDOW if window and takes(WINDOW, family) else family


def _found(distribution: Distribution | None) -> Family | None:
    if distribution is None:
        return None
    mixed = isinstance(distribution, Mixed)
    inner = distribution.distribution if isinstance(distribution, Mixed) else distribution
    if isinstance(inner, PointMass | Grouped):
        return Family(random=False, points=True)
    assert isinstance(inner, Categorical), "the guard refuses any other draft for a target of units with ids"
    return Family(random=True, points=mixed, support=None if inner.ids is None else inner.ids.shape[-1])


class Proposal:
    """The buffers of a family."""

    def __init__(self, family: Family, rows: int, nodes: int, vocab: int, device: torch.device) -> None:
        self.family, self.vocab = family, vocab
        # Padding is never valid, so that what it was "drawn from" is not read: any distribution does.
        size = (family.support or vocab) if family.random else 0
        self.probs = torch.full((rows, nodes, size), 1 / max(size, 1), dtype=torch.float32, device=device)
        self.ids = None if family.support is None else torch.arange(size, device=device).repeat(rows, nodes, 1)
        self.random = torch.zeros(rows, nodes, dtype=torch.bool, device=device)

    def place(self, distribution: Distribution | None) -> None:
        """Copy the distribution of a draft into the buffers, which take its family; it may have fewer nodes."""
        drawn, self.random[:] = distribution, False
        if isinstance(distribution, Mixed):
            drawn = distribution.distribution
            if isinstance(drawn, Categorical):
                self.random[:, : distribution.random.shape[1]].copy_(distribution.random)
        if isinstance(drawn, Categorical):
            self.probs[:, : drawn.probs.shape[1]].copy_(drawn.probs)
            if self.ids is not None and drawn.ids is not None:
                self.ids[:, : drawn.ids.shape[1]].copy_(drawn.ids)

    def distribution(self, units: Tensor) -> Distribution:
        """The distribution of the draft `units [batch, node]` that was placed last; torch can trace it."""
        if not self.family.random:
            return PointMass(units)
        drawn = Categorical(self.probs, self.ids, 0 if self.ids is None else self.vocab)
        return Mixed(drawn, self.random, units) if self.family.points else drawn
