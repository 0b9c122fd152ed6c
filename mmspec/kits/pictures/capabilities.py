"""What targets of pictures may offer beside the protocol of targets: one protocol a capability, for `isinstance`."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Gridded(Protocol):
    """A target whose units are the cells of a square picture, in raster order.

    Attributes:
        grid: Units per side.
    """

    grid: int


@runtime_checkable
class Renewing(Protocol):
    """A target whose calls can change, between two rounds, what guidance leads away from."""

    def renew_null(self, cache: Any, null: Tensor, null_mask: Tensor | None, units: Tensor, /) -> None:
        """Prefill the unconditional half again; arguments as in `mmspec.kits.pictures.raster.Raster.renew_null`.

        Raises:
            ValueError: The call began without guidance, or `null` has another shape than a condition.
        """
