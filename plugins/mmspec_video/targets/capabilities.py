"""Capabilities of targets that this plugin's rules and drafters ask for, as in `mmspec.core.capabilities`."""

from typing import Any, Protocol, runtime_checkable

from mmspec.core.protocols import Target
from mmspec_video.targets.checked import Check
from mmspec_video.targets.joint import Joint


@runtime_checkable
class Denoising(Protocol):
    """A target that denoises frames, and can do so in the way of a lossy rule."""

    model: Any  # the transformer

    def denoising_with(self, joint: Joint | None = None, check: Check | None = None) -> Target:
        """A copy of the target whose frames are made jointly, or by a student whom the model checks."""
        ...


@runtime_checkable
class FrameLayout(Protocol):
    """A target whose sequences are frames of units in raster order."""

    period: int  # units from one frame to the next
    columns: int  # units of a frame's row
