"""Capabilities that captured rounds ask for: of targets, passes of one shape; of drafters, drafts inside the round.

As in `mmspec.core.capabilities`, a class has a capability if it has the members.
"""

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.live import Live
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Step, TargetOutput


class CapturedPass(Protocol):
    """A target's pass of one shape over a cache of its own. Torch can trace `verify` and `commit`: no host sync."""

    def load(self, cache: Any) -> None:
        """Copy a call's cache into this pass's own, in place; the call goes on with this one."""
        ...

    def ready(self) -> AbstractContextManager[None]:
        """A block in which `verify` and `commit` may run, be traced or be replayed."""
        ...

    def verify(self, draft: Draft) -> TargetOutput:
        """`Target.verify` over the pass's own cache."""
        ...

    def commit(self, path: Tensor, count: Tensor) -> None:
        """`Target.commit` over the pass's own cache."""
        ...

    def lone(self) -> "CapturedPass":
        """The pass over the root alone, over the same cache."""
        ...


@runtime_checkable
class SecondChoice(Protocol):
    """A captured pass that may compute in a second way, for where the first one cannot be compiled, or is wrong."""

    def fall_back(self) -> str:
        """Go over to the second way: what it does, for a warning; "" if there is none, or the pass is there already."""
        ...


class InsideDrafts(Protocol):
    """The part of a drafter that a captured round holds, with the drafter's memory in buffers of its own.

    In `propose` and `observe` there is no host sync and no shape that depends on data: torch traces them.

    Attributes:
        parents: The parents of the drafted nodes of every draft; -1: the root.
    """

    parents: Sequence[int]

    def load(self, drafter: Any) -> None:
        """Copy a drafter's memory into the buffers; called when the round takes over a call."""
        ...

    def unload(self, drafter: Any) -> None:
        """Copy the buffers into the drafter's memory; called when the round is done with the call."""
        ...

    def propose(self, live: Live) -> tuple[Tensor, Tensor]:
        """`Drafter.propose`, given the rows alone; their `history` has all its columns.

        Returns:
            Units `[batch, node]`, and which of them are proposed, `[batch, node]` bool.
        """
        ...

    def observe(self, live: Live, step: Step) -> None:
        """`Drafter.observe`; rows that are done have `step.count` 0."""
        ...


@runtime_checkable
class DraftsInside(Protocol):
    """A drafter whose drafts are functions of the rows and of tensors: a captured round can make them itself."""

    @property
    def captured_key(self) -> Hashable:
        """What two drafters must share for one captured round to serve both."""
        ...

    def inside(self, k: int, device: torch.device) -> InsideDrafts:
        """New buffers for a captured round, for drafts of budget `k`."""
        ...


@runtime_checkable
class Capturable(Protocol):
    """A target whose pass of one shape can be captured: compiled, and on CUDA held in one graph."""

    def capture_key(self, cache: Any) -> Hashable:
        """What the caches of two calls must share for one captured pass to serve both."""
        ...

    def captured_pass(self, cache: Any, nodes: int, index: TreeIndex | None) -> CapturedPass:
        """A new captured pass for calls like the one that has `cache`.

        Args:
            cache: The call's cache; it is not changed.
            nodes: Nodes of every pass, root and padding included.
            index: The tree of every pass; None: each pass brings its own.

        Raises:
            ValueError: The pass cannot be captured; says why.
        """
        ...
