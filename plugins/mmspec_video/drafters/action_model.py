"""`action-model`: what the player did after the same actions before.

An n-gram model over the player's own history of this call: every earlier place votes for the action that followed
there, the more so the longer the actions before it agree with the latest ones, and a little more if it was lately.
Before there is a history it repeats the last action. With `branches` the likeliest next actions are tried side by side,
in one batch; each goes on as the model thinks likeliest.
Guarantee: none is needed. The truth decides, and a frame does not depend on when it was made.
Knobs: `ngram`: longer contexts are surer and rarer; `branches`: more hit more often and cost a frame each.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec_video.plugin import ACTION_MODEL

TRUST = 8.0
"""How many times more a place counts whose context agrees by one action more."""
REPEAT = 0.5
"""What repeating is worth, in votes of places whose context does not agree at all."""


@dataclass(frozen=True)
class ActionModelOptions:
    """Options of `action-model`."""

    ngram: Annotated[int, Field(ge=1, le=16)] = field(default=4, metadata={"help": "longest context, in actions"})
    branches: Annotated[int, Field(ge=1, le=16)] = field(
        default=1, metadata={"help": "next actions that are tried at once, in one batch"}
    )


class ActionModel:
    """A tree: `branches` next actions, a chain behind each.

    Args:
        options: Context and branches.
    """

    needs, offers = ACTION_MODEL.needs, ACTION_MODEL.offers
    example = "mmspec_video.example:player"

    def __init__(self, options: ActionModelOptions = ActionModelOptions()) -> None:
        self.options = options
        self.actions = 0

    def bind(self, target: Target) -> None:
        assert target.vocab is not None
        self.actions = target.vocab

    @property
    def branches(self) -> int:
        """No more than there are actions."""
        return min(self.options.branches, self.actions)

    def width(self, k: int) -> int:
        return k * self.branches

    def start(self, state: State, inputs: Any) -> None:
        return None

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

    def observe(self, state: State, step: Step) -> None:
        pass

    def _latest(self, state: State) -> Tensor:
        """The latest actions `[row, ngram]`, the root last; -1 where there are fewer."""
        back = torch.arange(-self.options.ngram, 0, device=state.known.device) + state.known[:, None]
        return torch.where(back >= state.pads[:, None], state.history.gather(1, back.clamp(min=0)), -1)

    def _votes(self, state: State) -> Tensor:
        """How much every place of the history counts, `[row, place]`: 0 where nothing is known, more the later."""
        place = torch.arange(state.history.shape[1], device=state.known.device)
        known = (place < state.known[:, None]) & (place >= state.pads[:, None])
        return torch.where(known, 1.0 + place.float() / len(place), 0.0)

    def _score(self, history: Tensor, votes: Tensor, context: Tensor) -> Tensor:
        """Scores `[row, branch, action]` of what follows `context [row, branch, ngram]`."""
        agree = torch.ones_like(history, dtype=torch.bool)[:, None].expand(-1, context.shape[1], -1)
        length = torch.zeros(agree.shape, dtype=torch.float32, device=history.device)
        for back in range(1, context.shape[2] + 1):
            before = F.pad(history, (back, 0), value=-2)[:, : history.shape[1]]  # what stands so far before each place
            agree = agree & (before[:, None] == context[..., -back, None])
            length = length + agree
        weight = votes[:, None] * TRUST**length
        found = F.one_hot(history.clamp(min=0, max=self.actions - 1), self.actions).to(weight.dtype)
        scores = weight @ found
        return scores + REPEAT * F.one_hot(context[..., -1].clamp(min=0), self.actions)
