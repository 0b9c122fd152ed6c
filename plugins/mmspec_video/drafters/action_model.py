"""`action-model`: guess what the player did after the same actions before.

An n-gram model over the player's own history in this call: every earlier position votes for the action that followed
there; its weight grows with the number of preceding actions that agree with the latest ones, and a little with recency.
Without a history the last action is repeated. With `branches`, the likeliest next actions are tried side by side in one
batch; each branch continues with the model's likeliest actions.
Guarantee: none is needed; the player's actions decide, and a frame does not depend on when it was made.
Knobs: `ngram`: longer contexts are more certain and rarer; `branches`: more guess right more often, and each costs a
frame.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from mmspec.core.drafters.none import Memoryless
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft
from mmspec.registry.options import option
from mmspec_video.specs import ACTION_MODEL

TRUST = 8.0  # factor by which a position's vote grows with every further action that agrees
REPEAT = 0.5  # weight of repeating the last action, in votes of positions whose context does not agree


@dataclass(frozen=True)
class ActionModelOptions:
    ngram: Annotated[int, Field(ge=1, le=16)] = option(4, "longest context, in actions")
    branches: Annotated[int, Field(ge=1, le=16)] = option(1, "next actions that are tried at once, in one batch")


class ActionModel(Memoryless):
    """A drafter of trees: `branches` next actions, each followed by a chain."""

    needs, offers = ACTION_MODEL.needs, ACTION_MODEL.offers

    def __init__(self, options: ActionModelOptions = ActionModelOptions()) -> None:
        self.options = options
        self.actions = 0

    def bind(self, target: Target) -> None:
        assert target.vocab is not None
        self.actions = target.vocab

    @property
    def branches(self) -> int:
        """Branches per round, at most the number of actions."""
        return min(self.options.branches, self.actions)

    def width(self, k: int) -> int:
        return k * self.branches

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        branches = self.branches
        history, votes = state.history, self._votes(state)
        context = self._latest(state)
        first = self._score(history, votes, context[:, None])[:, 0].topk(branches).indices  # [row, branch]
        levels, context = [first], context[:, None].expand(-1, branches, -1)
        for _ in range(k - 1):
            context = torch.cat([context[..., 1:], levels[-1][..., None]], -1)
            levels.append(self._score(history, votes, context).argmax(-1))
        parents = [-1] * branches + list(range((k - 1) * branches))
        return Draft.tree(torch.cat(levels, 1), parents)

    def _latest(self, state: State) -> Tensor:
        """The latest actions `[row, ngram]`, the root last; -1 where there are fewer."""
        back = torch.arange(-self.options.ngram, 0, device=state.known.device) + state.known[:, None]
        return torch.where(back >= state.pads[:, None], state.history.gather(1, back.clamp(min=0)), -1)

    def _votes(self, state: State) -> Tensor:
        """Weights `[row, position]` of the history: 0 where nothing is known, larger for later positions."""
        position = torch.arange(state.history.shape[1], device=state.known.device)
        known = (position < state.known[:, None]) & (position >= state.pads[:, None])
        return torch.where(known, 1.0 + position.float() / len(position), 0.0)

    def _score(self, history: Tensor, votes: Tensor, context: Tensor) -> Tensor:
        """Scores `[row, branch, action]` of the action after `context [row, branch, ngram]`."""
        agree = torch.ones_like(history, dtype=torch.bool)[:, None].expand(-1, context.shape[1], -1)
        length = torch.zeros(agree.shape, dtype=torch.float32, device=history.device)
        for back in range(1, context.shape[2] + 1):
            before = F.pad(history, (back, 0), value=-2)[:, : history.shape[1]]  # the action `back` positions earlier
            agree = agree & (before[:, None] == context[..., -back, None])
            length = length + agree
        weight = votes[:, None] * TRUST**length
        found = F.one_hot(history.clamp(min=0, max=self.actions - 1), self.actions).to(weight.dtype)
        scores = weight @ found
        return scores + REPEAT * F.one_hot(context[..., -1].clamp(min=0), self.actions)
