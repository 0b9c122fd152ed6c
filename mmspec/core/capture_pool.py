"""The captured rounds of a model. They outlive decoders, since compiling takes longer than most calls.

A round serves one call at a time. It is lent to a call until the call's state is gone; a second call of the same shape
in the meantime gets a round of its own.
"""

import gc
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from mmspec.core.capabilities import RunsModel
from mmspec.core.captured import CapturedRound
from mmspec.core.frozen import freezable, numbers
from mmspec.core.protocols import Target
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection, Rule
from mmspec.core.state import State

NAME = "_mmspec_captured"
"""The attribute of a model that holds its pool."""

MOST = 16
"""Shapes whose rounds are kept."""

STATELESS = (Match, Rejection, RecursiveRejection, Block)
"""Rules without options: whose instance a round holds is all the same."""


@dataclass
class _Lent:
    """A captured round, and the call that has it."""

    round: CapturedRound
    call: weakref.ref[State]

    def free_for(self, state: State) -> bool:
        """Whether a call can have the round: nobody else does. A call may have several, and go back to one of them."""
        return self.call() is None or self.call() is state


@dataclass
class _Shape:
    """The rounds of calls of one shape; `eager`, if such calls are not captured: that failed, or was slower."""

    lent: list[_Lent] = field(default_factory=list)
    eager: bool = False


class Pool:
    """Captured rounds by shape. A copy of it is empty, because rounds hold the buffers and weights of their model.

    Attributes:
        frozen: Whether new rounds bake in the weights (`mmspec.core.frozen`).
    """

    def __init__(self) -> None:
        self._shapes: dict[Hashable, _Shape] = {}
        self._lock = threading.Lock()
        self._weights: Hashable = None
        self.frozen = True

    def renew(self, target: Target) -> None:
        """Decide whether rounds bake in the weights; drop those that have earlier weights. Called when a call begins.

        Weights that changed once are not baked in again, because compiling takes longer than most calls.
        """
        if not self.frozen:
            return
        if not isinstance(target, RunsModel) or not freezable(target.model):
            self.frozen = False
            return
        weights = numbers(target.model)
        if self._weights not in (None, weights):
            self.frozen = False
            self.clear()
        self._weights = weights

    @property
    def rounds(self) -> list[CapturedRound]:
        """Every round that is kept."""
        return [lent.round for shape in self._shapes.values() for lent in shape.lent]

    def clear(self) -> None:
        """Free all rounds but those that calls have."""
        for shape in self._shapes.values():
            shape.lent.clear()

    def lend(self, key: Hashable, state: State, capture: Callable[[], CapturedRound | None]) -> CapturedRound | None:
        """A round for this call alone, with the call loaded; None if such calls are not captured.

        Args:
            key: The shape of the call.
            state: The call.
            capture: Makes a round and loads the call; None if the eager loop is faster.
        """
        with self._lock:
            shape = self._shapes[key] = self._shapes.pop(key, _Shape())  # the latest one
            while len(self._shapes) > MOST:
                del self._shapes[next(iter(self._shapes))]
            if shape.lent and not any(lent.free_for(state) for lent in shape.lent):
                gc.collect()  # calls that ended may be part of a cycle
            free = next((lent for lent in shape.lent if lent.free_for(state)), None)
            if free is not None:
                free.call = weakref.ref(state)
        if shape.eager:
            return None
        if free is not None:
            free.round.load(state)
        else:
            shape.eager = True
            captured = capture()
            if captured is None:
                return None
            shape.eager, free = False, _Lent(captured, weakref.ref(state))
            shape.lent.append(free)
        return free.round

    def __deepcopy__(self, memo: dict[int, Any]) -> "Pool":
        return Pool()

    def __reduce__(self) -> tuple[type["Pool"], tuple[()]]:
        return Pool, ()


def pool_of(target: Target, rule: Rule) -> Pool:
    """The pool of a target's model; a new one if there is no model, or if the rule may have options."""
    if not isinstance(target, RunsModel) or type(rule) not in STATELESS:
        return Pool()
    pool: Pool = vars(target.model).setdefault(NAME, Pool())
    return pool
