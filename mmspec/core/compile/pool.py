"""The captured rounds, or drafts, of a model. They outlive calls, since compiling takes longer than most calls.

Each serves one call at a time. It is lent to a call until the call's state is gone; a second call of the same shape
in the meantime gets one of its own.
"""

import gc
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from types import CodeType
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from torch import nn

from mmspec.core.capabilities import RunsModel
from mmspec.core.frozen import freezable, numbers, places
from mmspec.core.protocols import Target
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection, Rule
from mmspec.core.state import State

NAME = "_mmspec_captured"
"""The attribute of a model that holds its pool. A pool holds the model, so that any other owner would keep it alive."""

MOST = {"compiled": 16, "recorded": 4}
"""Shapes whose rounds are kept, by how they were captured: what took minutes to compile, and what is recorded again
within a second. Each holds a cache of its own."""

STATELESS = (Match, Rejection, RecursiveRejection, Block)
"""Rules without options: whose instance a round holds is all the same."""


class Captured(Protocol):
    """A compiled function over buffers of its own."""

    def load(self, state: State) -> None:
        """Take over a call."""


Held = TypeVar("Held", bound=Captured)
Key = tuple[str, Hashable]


class Pool(Generic[Held]):
    """Captured rounds of calls, by shape. A copy is empty, because what is captured holds buffers and weights."""

    def __init__(self) -> None:
        self._shapes: dict[Key, list[tuple[Held, weakref.ref[State]]]] = {}  # and the call that has it
        self._eager: set[Key] = set()  # shapes that are not captured: that failed, or was slower
        self._lock = threading.Lock()
        self._weights: WeakKeyDictionary[nn.Module, Hashable] = WeakKeyDictionary()
        self.frozen = True  # whether what is captured next bakes in the weights (`mmspec.core.frozen`)
        # The codes of compiled passes, by what two plans must share for one to serve both
        self.passes: WeakValueDictionary[Hashable, CodeType] = WeakValueDictionary()

    def renew(self, models: Sequence[nn.Module]) -> None:
        """Decide whether weights are baked in; drop what has earlier weights. Called when a call begins.

        Weights that changed once are not baked in again, because compiling takes longer than most calls. Others are
        read where they lie, so that only new places count. The models are all whose weights are read; none, if that is
        not known.
        """
        self.frozen = self.frozen and bool(models) and all(map(freezable, models))
        weights = {model: (numbers if self.frozen else places)(model) for model in models}
        if any(self._weights.get(model, now) != now for model, now in weights.items()):
            self.clear()
            self.passes.clear()
            self._weights.clear()
            if self.frozen:
                self.frozen = False
                weights = {model: places(model) for model in models}
        self._weights.update(weights)

    @property
    def rounds(self) -> list[Held]:
        """All that is kept."""
        return [held for lent in self._shapes.values() for held, _ in lent]

    def clear(self, way: str | None = None) -> None:
        """Free all but what calls have; of one way of capturing, or all."""
        for key in [key for key in (*self._shapes, *self._eager) if way in (None, key[0])]:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        self._shapes.pop(key, None)
        self._eager.discard(key)

    def lend(self, key: Key, state: State, capture: Callable[[], Held | None]) -> Held | None:
        """The captured round of such calls, for this call alone, which is loaded; None if they are not captured.

        A call may have several, and go back to one of them. The key is how it is captured, and the shape of the call;
        `capture` captures it anew and loads the call, or returns None if the eager loop is faster.
        """
        with self._lock:
            lent = self._shapes[key] = self._shapes.pop(key, [])  # the latest one
            for oldest in [other for other in self._shapes if other[0] == key[0]][: -MOST[key[0]]]:
                self._drop(oldest)
            if lent and not any(_free(call, state) for _, call in lent):
                gc.collect()  # calls that ended may be part of a cycle
            free = next((order for order, (_, call) in enumerate(lent) if _free(call, state)), None)
            if free is not None:
                lent[free] = lent[free][0], weakref.ref(state)
        if key in self._eager:
            return None
        if free is not None:
            lent[free][0].load(state)
            return lent[free][0]
        self._eager.add(key)
        captured = capture()
        if captured is not None:
            self._eager.discard(key)
            lent.append((captured, weakref.ref(state)))
        return captured

    def __deepcopy__(self, memo: dict[int, Any]) -> "Pool[Held]":
        return Pool()

    def __reduce__(self) -> tuple[type["Pool[Held]"], tuple[()]]:
        return Pool, ()


def pool_of(target: Target, rule: Rule) -> Pool[Any]:
    """The pool of a target's model; a new one if there is no model, or if the rule may have options."""
    if not isinstance(target, RunsModel) or type(rule) not in STATELESS:
        return Pool()
    pool: Pool[Any] = vars(target.model).setdefault(NAME, Pool())
    return pool


def _free(call: weakref.ref[State], state: State) -> bool:
    """True if a call can have what `call` had."""
    return call() is None or call() is state
