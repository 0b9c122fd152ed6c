"""Optional capabilities of targets, drafters and rules: one protocol each.

The core asks `isinstance(object, Capability)`. A class has a capability if it has the members; nothing is inherited.
"""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Prefill


@runtime_checkable
class Bounded(Protocol):
    """A target with a longest context.

    Attributes:
        context: Most units of a row, prompt included; None: no bound. No draft goes beyond it; the root of a row that
            drafts no more may.
    """

    context: int | None


@runtime_checkable
class Forcing(Protocol):
    """A target some of whose units are known in advance (separators, say).

    Attributes:
        forced: `[n]` int64: ids that the emitted units `0 … n - 1` must have, -1 where they are free; or None.
    """

    forced: Tensor | None


@runtime_checkable
class OneShape(Protocol):
    """A target whose passes can all have one shape, so that a node's scores do not depend on what others hold."""

    @property
    def prefers_one_shape(self) -> bool:
        """True if width costs little there, and widths round differently: on CUDA in half precision."""

    def start_fixed(self, inputs: Any, limit: int, width: int) -> Prefill:
        """`start` for a call whose passes after the prefill all have `width` nodes.

        No shape inside a pass may depend on how far the rows are, and no kernel on measured times; how much the cache
        holds depends on prompt, limit and width only.
        """


@runtime_checkable
class Widening(Protocol):
    """A target whose passes have more nodes than the drafts that they verify."""

    def pass_nodes(self, nodes: int) -> int:
        """Nodes of the pass over a draft of so many nodes, the root included."""


@runtime_checkable
class LengthAware(Protocol):
    """A target whose passes cover as much of its cache as rows are long; where asking the device would be a wait."""

    def synced(self, cache: Any, emitted: Sequence[int]) -> None:
        """Take the lengths from the loop's host sync; called after each of them.

        Args:
            cache: The target's cache of the call.
            emitted: The units that every row has emitted. No row has committed more of them.
        """


@runtime_checkable
class Sharing(Protocol):
    """A target whose passes can be over the rows of several calls (`mmspec.core.sharing`)."""

    def to_share(self) -> Any:
        """The target for calls that share.

        Raises:
            ValueError: Its passes belong to one call; says why.
        """

    def beside(self) -> Any:
        """The target for a call that begins while others run: what was found out about the model for them holds."""

    def size(self, inputs: Any) -> tuple[int, int]:
        """The rows of a prompt, and the units that a call reads of it."""

    def kind(self, cache: Any) -> Hashable:
        """A key of the calls whose rows can be in one pass; None: no others can be among this one's.

        Args:
            cache: The call's, after `start`.
        """

    def joined(self, caches: Sequence[Any]) -> Any:
        """One cache with the rows of several, in their order.

        Args:
            caches: None of them is used any more; the last commit is behind all.
        """

    def taken(self, cache: Any, rows: Sequence[int]) -> Any:
        """A cache with some rows of another one.

        Args:
            cache: The other one, which is not used any more.
            rows: The numbers of the rows, in their new order.
        """


@runtime_checkable
class Exporting(Protocol):
    """A target that can convert its cache into the model's own format."""

    def export(self, cache: Any, sequences: Tensor, emitted: Tensor) -> Any:
        """The cache that unmodified decoding would leave in `past_key_values`; None if that is not possible.

        Args:
            cache: The target's cache of the call.
            sequences: Prompts and emitted units as the call returns them, `[batch, prompt + longest]`.
            emitted: `[batch]` int64.
        """


@runtime_checkable
class RunsModel(Protocol):
    """A target that runs a torch module.

    Attributes:
        model: The module.
    """

    model: nn.Module


@runtime_checkable
class Wrapper(Protocol):
    """A target that wraps another one.

    Attributes:
        target: The wrapped target.
    """

    target: Target


@runtime_checkable
class DraftsWithModel(Protocol):
    """A drafter that runs a draft model.

    Attributes:
        model: The draft model, as a target.
    """

    model: Target


@runtime_checkable
class RunsTarget(Protocol):
    """A drafter whose own passes may be passes of the call's target, of parts of it, or over its keys."""

    @property
    def runs_target(self) -> bool:
        """True if they are passes of the target; asked after `bind`."""


@runtime_checkable
class WithinPasses(Protocol):
    """A drafter that acts in the middle of the target's passes, where a captured pass runs nothing of Python's.

    Attributes:
        within: What it does there: "hears an early exit".
    """

    within: str


@runtime_checkable
class Renumbering(Protocol):
    """A drafter that remembers the nodes of its draft, which may be a part of another drafter's."""

    def renumber(self, state: State, nodes: Tensor) -> None:
        """Take the numbers that a round's nodes have, before it is observed.

        Args:
            state: The call.
            nodes: `[batch, node]`: which of the drafter's own nodes each node of the draft is, the root not counted;
                beyond their number: none.
        """


@runtime_checkable
class WithNetwork(Protocol):
    """A drafter with a trained network beside its target, such as a head.

    Attributes:
        network: The module; it has its weights once the drafter is bound.
    """

    network: nn.Module


class Lesson(Protocol):
    """A drafter's lesson between calls (`mmspec.core.learning`)."""

    def weights(self) -> Sequence[nn.Parameter]:
        """The weights that learning changes, in place; never the target's."""

    def loss(self, units: Tensor, counted: Tensor) -> Tensor:
        """The distance of the drafter's distributions from the target's, along a text: a scalar with a gradient.

        Args:
            units: The text, `[batch, unit]` int64.
            counted: `[batch, unit]` bool: the units whose distributions count.
        """

    def save(self, folder: Path) -> None:
        """Write the drafter's network in a form that its option `model` takes.

        Raises:
            ValueError: There is no form for it.
        """


@runtime_checkable
class Conditioning(Protocol):
    """A drafter whose target is another one than the model alone: rules are exact for that one.

    Attributes:
        wrt: The distribution that the output follows, in words.
    """

    wrt: str

    def wrap(self, target: Target) -> Target:
        """The target to decode with, as in `TargetWrapping`. Wrapped again, it is wrapped once."""


@runtime_checkable
class Learns(Protocol):
    """A drafter with a network that can be trained between calls."""

    def lesson(self, loss: str, depth: int) -> Lesson:
        """Its lesson for the target that it is bound to.

        Args:
            loss: The kind of the loss.
            depth: Units of a draft along which a head is unrolled.

        Raises:
            ValueError: It cannot learn for this target, or there is no such loss.
        """


@runtime_checkable
class OwnLength(Protocol):
    """A drafter whose checkpoint was made for drafts of some length."""

    @property
    def own_length(self) -> int | None:
        """Units of its longest path; None: the checkpoint does not say."""


@runtime_checkable
class Paced(Protocol):
    """A drafter whose drafts are as long as measured times say, where nobody names a number."""

    def paced_length(self, target: Target) -> int | None:
        """Units of a draft for a target, from times that are measured now; None: they could not be measured."""


@runtime_checkable
class Advising(Protocol):
    """A drafter whose needs depend on its options.

    Attributes:
        advice: Appended to the error that refuses the drafter: which options would fit.
    """

    advice: str


@runtime_checkable
class TargetAware(Protocol):
    """A part that takes something from the target: every drafter, and a rule that needs its codebook, say."""

    def bind(self, target: Target) -> None:
        """Take what the rule needs from the target; called once, before any call.

        Raises:
            ValueError: The two cannot work together.
        """


@runtime_checkable
class TargetWrapping(Protocol):
    """A lossy rule or a drafter that needs another target: one that gives hidden states, reads more, or keeps less."""

    def wrap(self, target: Target) -> Target:
        """The target to decode with: a copy or a wrapper, so that other decoders of `target` are not affected."""
