"""What targets, drafters and rules may do beside what everybody must: one protocol a capability.

The core asks `isinstance(object, Capability)`. A class has a capability when it has the member; nothing is inherited.
"""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from mmspec.core.protocols import Target


@runtime_checkable
class Bounded(Protocol):
    """A target that was made for so many units.

    Attributes:
        context: Most units of a row, prompt included; None: no end. No draft goes beyond it.
    """

    context: int | None


@runtime_checkable
class Forcing(Protocol):
    """A target some of whose units are known in advance (the last code of every row of a picture, say).

    Attributes:
        forced: `[unit]` int64: the id that the emitted unit of that index must have, -1 where it is free; or None.
    """

    forced: Tensor | None


@runtime_checkable
class Exporting(Protocol):
    """A target that hands its cache over in the form in which the model's users know it."""

    def export(self, cache: Any, sequences: Tensor, emitted: Tensor) -> Any:
        """What unmodified decoding would leave in `past_key_values`; None where that is not possible.

        Args:
            cache: The call's memory.
            sequences: Prompts and emitted units as the call returns them, `[batch, prompt + longest]`.
            emitted: `[batch]` int64.
        """
        ...


@runtime_checkable
class RunsModel(Protocol):
    """A target over a module of torch.

    Attributes:
        model: The module.
    """

    model: nn.Module


@runtime_checkable
class Wrapper(Protocol):
    """A target that passes everything on to another one.

    Attributes:
        target: The other one.
    """

    target: Target


@runtime_checkable
class DraftsWithModel(Protocol):
    """A drafter that runs a model of its own.

    Attributes:
        model: The model, as a target.
    """

    model: Target


@runtime_checkable
class Advising(Protocol):
    """A drafter whose needs follow from its options.

    Attributes:
        advice: The end of the sentence that refuses it: which options would do.
    """

    advice: str


@runtime_checkable
class TargetAware(Protocol):
    """What takes something from the target: every drafter, and a rule that needs its codebook, say."""

    def bind(self, target: Target) -> None:
        """Meet the target once, before any call.

        Raises:
            ValueError: The two cannot work together.
        """
        ...


@runtime_checkable
class TargetWrapping(Protocol):
    """A lossy rule under which the target works otherwise."""

    def wrap(self, target: Target) -> Target:
        """What to decode with instead: a copy, so that nothing changes for other decoders of that target."""
        ...
