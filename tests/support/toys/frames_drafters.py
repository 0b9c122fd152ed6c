"""Drafters of a player's actions."""

from typing import Any

import torch

from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step


class RepeatAction:
    """A chain of one action.

    Args:
        action: The id to draft (one that the player never takes makes a drafter that is always wrong); None repeats
            the player's last action.
    """

    offers = frozenset({"chain"})
    needs = frozenset({"discrete"})

    def __init__(self, action: int | None = None) -> None:
        self.action = action

    def bind(self, target: Target) -> None:
        pass

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> None:
        return None

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        guess = state.root if self.action is None else torch.full_like(state.root, self.action)
        return Draft.chain(guess[:, None].expand(-1, k))

    def observe(self, state: State, step: Step) -> None:
        pass


class EveryAction:
    """All actions, one step ahead: a tree that is never wrong."""

    offers = frozenset({"tree"})
    needs = frozenset({"discrete"})
    vocab = 0

    def bind(self, target: Target) -> None:
        assert target.vocab is not None
        self.vocab = target.vocab

    def width(self, k: int) -> int:
        return self.vocab

    def start(self, state: State, inputs: Any) -> None:
        return None

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        return Draft.tree(torch.arange(self.vocab).expand(state.rows, -1), (-1,) * self.vocab)

    def observe(self, state: State, step: Step) -> None:
        pass
