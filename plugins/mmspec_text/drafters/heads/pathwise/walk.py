"""A draft on its way: the states of the nodes that were fed last, from which the next level is computed."""

from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.types import Draft, TargetOutput
from mmspec_text.drafters.heads.pathwise.head import PathHead


class Walk:
    """The `feed` of `mmspec.core.drafters.growing` for a head that steps along paths.

    All nodes of a level are fed at once, and their parents are nodes of the level before: its states are all that is
    kept.

    Args:
        head: The head.
        states: `[batch, 1, size]`: the root's.
    """

    def __init__(self, head: PathHead, states: Tensor) -> None:
        self.head, self.states = head, states
        self.first = self.depth = 0  # of the nodes that `states` are of

    def output(self) -> TargetOutput:
        """The output at the nodes that were fed last."""
        return TargetOutput(logits=self.head.logits(self.states, self.depth))

    def grow(self, draft: Draft, first: int) -> TargetOutput:
        """The output at the nodes of a rooted draft from `first` on, which are one level."""
        parents = take_nodes(self.states, draft.index.parent[:, first:] - self.first)
        self.depth += 1
        self.states, self.first = self.head.followed(parents, draft.units[:, first:], self.depth), first
        return self.output()
