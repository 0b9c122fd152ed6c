"""What targets of pictures may offer beside the protocol of targets: one protocol a capability, for `isinstance`."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from mmspec.kits.pictures.grid_spec import GridSpec


@runtime_checkable
class Gridded(Protocol):
    """A target whose units are the cells of a square picture, in raster order."""

    grid: int  # units per side


@runtime_checkable
class GridFromPrompt(Protocol):
    """A target whose pictures have the size that the prompt says, in cells of several stages."""

    def grid_of(self, inputs: Any) -> GridSpec | None:
        """The units of the pictures of a call; None: a constraint of the call has them, or it is a text.

        Args:
            inputs: The prompt, as `start` takes it.

        Raises:
            ValueError: The prompt says no size, or several.
        """
        ...


@runtime_checkable
class Renewing(Protocol):
    """A target whose calls can change, between two rounds, what guidance leads away from."""

    def renew_null(self, cache: Any, null: Tensor, null_mask: Tensor | None, units: Tensor, /) -> None:
        """Prefill the unconditional half again; arguments as in `mmspec.kits.pictures.raster.Raster.renew_null`.

        Raises:
            ValueError: The call began without guidance, or `null` has another shape than a condition.
        """
