"""The captured rounds of a model. They outlive calls, since compiling takes longer than most calls.

Their buffers serve one call at a time. They are lent to a call until the call's state is gone; a second call of the
same shape in the meantime gets some of its own.
"""

import gc
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from torch import nn

from mmspec.core.capabilities import RunsModel
from mmspec.core.compile.rounds import Buffers, CapturedRound
from mmspec.core.frozen import freezable, numbers, places
from mmspec.core.protocols import Target
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection, Rule
from mmspec.core.state import State

NAME = "_mmspec_captured"
"""The attribute of a model that holds its pool. A pool holds the model, so that any other owner would keep it alive."""

MOST = {"compiled": 16, "recorded": 4}
"""Shapes whose buffers are kept, and rounds over each of them, by how these were captured: what took minutes to
compile, and what is recorded again within a second. Buffers have a cache."""

STATELESS = (Match, Rejection, RecursiveRejection, Block)
"""Rules without options: whose instance a round holds is all the same."""


Key = tuple[str, *tuple[Hashable, ...]]  # the first part is how rounds are captured


class Pool:
    """Buffers of calls, by shape, and the rounds over them. A copy is empty, because rounds hold weights."""

    def __init__(self) -> None:
        self._shapes: dict[Key, list[tuple[Buffers, weakref.ref[State]]]] = {}  # and the call that has them
        self._eager: set[Key] = set()  # rounds that are not captured: that failed, or were slower
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
    def rounds(self) -> list[CapturedRound]:
        """All that are kept."""
        return [kept for lent in self._shapes.values() for held, _ in lent for kept in held.rounds.values()]

    def clear(self, way: str | None = None) -> None:
        """Free all but what calls have; of one way of capturing, or all."""
        for key in [key for key in self._shapes if way in (None, key[0])]:
            del self._shapes[key]
        self._eager = {key for key in self._eager if way not in (None, key[0])}

    def lend(
        self,
        shape: Key,
        key: Key,
        state: State,
        make: Callable[[], Buffers],
        capture: Callable[[Buffers], CapturedRound | None],
    ) -> CapturedRound | None:
        """The round `key` over buffers of a shape, lent to this call alone, which they load; None if there is none.

        A call keeps its buffers. `make` makes new ones. `capture` captures a round over some anew, or returns None if
        the eager loop is faster; where it failed, it is not asked again.
        """
        if key in self._eager:
            return None
        with self._lock:
            lent = self._shapes[shape] = self._shapes.pop(shape, [])  # the latest one
            for oldest in [other for other in self._shapes if other[0] == shape[0]][: -MOST[shape[0]]]:
                del self._shapes[oldest]
            if lent and not any(_free(call, state) for _, call in lent):
                gc.collect()  # calls that ended may be part of a cycle
            lent.sort(key=lambda each: each[1]() is not state)  # its own come first
            free = next((order for order, (_, call) in enumerate(lent) if _free(call, state)), None)
            held = None if free is None else lent[free][0]
            if free is not None:
                lent[free] = lent[free][0], weakref.ref(state)
        new = make() if held is None else held
        found = new.rounds.pop(key, None)
        if found is None:
            self._eager.add(key)
            found = capture(new)
            if found is None:
                return None
            self._eager.discard(key)
        new.rounds[key] = found  # the latest one
        new.rounds = dict([*new.rounds.items()][-MOST[key[0]] :])
        if held is None:
            lent.append((new, weakref.ref(state)))
        new.load(state)
        return found

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


def _free(call: weakref.ref[State], state: State) -> bool:
    """True if a call can have what `call` had."""
    return call() is None or call() is state
