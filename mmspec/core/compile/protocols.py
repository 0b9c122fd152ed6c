"""Capabilities that captured rounds ask for: of targets, passes of one shape; of drafters, drafts inside the round.

As in `mmspec.core.capabilities`, a class has a capability if it has the members.
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise
from mmspec.core.state import State
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Step, TargetOutput


class HeldCache(Protocol):
    """A target's cache whose tensors keep their addresses, for call after call."""

    def load(self, call: Any) -> Any:
        """Copy the cache of a call into these tensors: the cache that the call goes on with, which has them."""

    def fall_back(self) -> str:
        """Let passes compute in a second way, for where the first cannot be compiled, or is wrong.

        Returns:
            What the second way does, for a warning; "" if there is none, or passes do so already.
        """


@runtime_checkable
class Capturable(Protocol):
    """A target whose pass of one shape can be captured: compiled, and on CUDA held in one graph.

    Over a held cache, torch can trace `forward` and `commit`: there is no host sync in them.
    """

    def capture_key(self, cache: Any) -> Hashable:
        """A key that the caches of two calls must share for one captured round to serve both."""

    def held(self, cache: Any, nodes: int) -> HeldCache:
        """An empty cache for captured rounds of calls like the one that has `cache`, which is not changed.

        Every pass has `nodes` nodes, root and padding included, or is over the root alone.

        Raises:
            ValueError: The pass cannot be captured; says why.
        """

    def expect(self, cache: Any, index: TreeIndex) -> None:
        """Prepare a held cache for passes over a tree that every draft of some round has; others bring their own."""

    def ready(self, cache: Any, nodes: int) -> AbstractContextManager[None]:
        """A block in which `forward` over so many nodes may run, be traced or be replayed."""

    def forward(self, cache: Any, draft: Draft, first: int = 0) -> TargetOutput:
        """`Target.verify` inside of `ready`."""

    def commit(self, cache: Any, path: Tensor, count: Tensor) -> None:
        """As `Target.commit`."""


class InsideDrafts(Protocol):
    """The part of a drafter that a captured round holds, with the memory of drafter and call in buffers of its own.

    In `propose` and `observe` there is no host sync and no shape that depends on data: torch traces or records them.
    """

    parents: Sequence[int] | None  # of the drafted nodes of every draft; -1: the root. None: each brings its own tree
    key: Hashable = ()  # what two drafters, and two calls, must share for one captured round to serve both
    longest: int = 0  # units of the longest path that a round verifies, if that is another drafter's
    modules: Sequence[nn.Module] = ()  # those whose weights drafts read, beside the target's

    def reserve(self, state: State) -> None:
        """Allocate buffers for calls like this one: once, before the round is captured; by default there are none."""
        return

    def ready(self) -> AbstractContextManager[None]:
        """A block in which the round may run, be traced or be replayed."""
        return nullcontext()

    def load(self, drafter: Any, state: State) -> None:
        """Copy the memory of a drafter and of a call into the buffers; called when the round takes over the call."""
        return

    def unload(self, drafter: Any, state: State) -> None:
        """Copy the buffers into the memory of both; called when the round is done with the call."""
        return

    def propose(self, live: Live, noise: DraftNoise) -> Draft:
        """`Drafter.propose`, given the rows alone; their `history` has all its columns. The draft is not rooted."""

    def renumber(self, nodes: Tensor) -> None:
        """As in `mmspec.core.capabilities.Renumbering`; by default a drafter does not remember its nodes."""
        return

    def observe(self, live: Live, step: Step) -> None:
        """`Drafter.observe`; rows that are done have `step.count` 0."""


class DraftsOfRows(InsideDrafts):
    """Drafts that depend on the rows alone."""

    def __init__(self, parents: Sequence[int], draft: Callable[[Live], Draft], key: Hashable = ()) -> None:
        self.parents, self._draft, self.key = parents, draft, key

    def propose(self, live: Live, noise: DraftNoise) -> Draft:
        return self._draft(live)

    def observe(self, live: Live, step: Step) -> None:
        pass


@runtime_checkable
class DraftsInside(Protocol):
    """A drafter whose drafts are functions of the rows and of tensors: a captured round can make them itself."""

    everywhere: bool  # whether it drafts inside on a CPU, too, where a host that drafts waits for nothing

    def inside(self, k: int, state: State) -> InsideDrafts:
        """The memory in a captured round of such calls, for drafts of budget `k`."""

    def fits_inside(self, state: State) -> bool:
        """True if the call's next draft is one of those inside of captured rounds."""
