"""Drafts of a head that scores a whole block in one pass.

The pass gives a state for every depth, and so the distribution of the unit at every depth, whatever the units before
it are: a product. A tree therefore costs no further pass: nodes of one depth share their children's scores. A *sequel*
lets scores depend on the units drafted before (the Markov head of DSpark); then the draft is a Markov chain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.growing import grown
from mmspec.core.drafters.shapes import Shape
from mmspec.core.noise import DraftNoise
from mmspec.core.state import State
from mmspec.core.types import Draft, TargetOutput
from mmspec_text.drafters.heads.vocabulary import over_target


class Scorer(Protocol):
    """The output side of a head."""

    def scored(self, states: Tensor) -> Tensor:
        """Logits `[batch, depth, drafted]` over the head's own ids, of states `[batch, depth, hidden]`."""

    def over_target(self, scored: Tensor) -> Tensor:
        """Logits `[batch, node, vocab]` over the target's ids, -inf where the head has no id."""


@dataclass(frozen=True)
class Scored:
    """A `Scorer` of what is scored already: of logits in the place of states, over at least the target's ids."""

    vocab: int
    known: Tensor | None = None  # `[vocab]` bool: ids that the drafter has, if they are not all

    def scored(self, states: Tensor) -> Tensor:
        return states

    def over_target(self, scored: Tensor) -> Tensor:
        logits = over_target(scored, None, self.vocab)
        return logits if self.known is None else logits.masked_fill(~self.known, -torch.inf)


class Sequel(Protocol):
    """The change of the scores by the units drafted before."""

    def __call__(self, scored: Tensor, units: Tensor, states: Tensor, above: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits in the place of `scored`, at nodes of one level; and what their children need, `[batch, node, width]`.

        `scored [batch, node, drafted]` is what the head scored of their children from `states [batch, node, hidden]`,
        and `above` what this function returned second at the nodes' parents; None at the root.
        """


Confidence = Callable[[Tensor, Tensor], Tensor]
"""`(states [batch, node, hidden], units [batch, node])`: how likely it is that a child of each node is accepted."""


class Block:
    """The output of a head for a block.

    `states` are `[batch, depth, hidden]`: the state at depth `d` scores the units at depth `d + 1`.
    """

    def __init__(
        self, head: Scorer, states: Tensor, sequel: Sequel | None = None, confidence: Confidence | None = None
    ) -> None:
        self.head, self.states, self.sequel, self.confidence = head, states, sequel, confidence
        self.scored = head.scored(states)
        self._carried: Tensor | None = None  # what the sequel returned second, at the nodes so far

    def at_root(self, root: Tensor) -> TargetOutput:
        """The output at the root, `[batch]`."""
        return self.grow(Draft.alone(root), 0)

    def grow(self, draft: Draft, first: int) -> TargetOutput:
        """The output at the nodes of a rooted draft from `first` on; all of one level, level after level."""
        rows = len(self.states)
        depth = draft.index.depth[:, first:].expand(rows, -1)
        scored, states, units = take_nodes(self.scored, depth), take_nodes(self.states, depth), draft.units[:, first:]
        if self.sequel is not None:
            parents = draft.index.parent[:, first:].expand(rows, -1)
            above = None if self._carried is None else take_nodes(self._carried, parents)
            scored, new = self.sequel(scored, units, states, above)
            self._carried = new if self._carried is None else torch.cat([self._carried[:, :first], new], 1)
        sure = None if self.confidence is None else self.confidence(states, units)
        return TargetOutput(logits=self.head.over_target(scored), auxiliary=sure)


@torch.no_grad()
def drafted(block: Block, shape: Shape, state: State, k: int, noise: DraftNoise) -> Draft:
    """Draft at most `k` units per path, at least one."""
    draft, _, _ = grown(shape, state, k, shape.levels(k), noise, block.at_root(state.root), feed=block.grow)
    return draft
