"""What the conformance kit tries the drafters on that draft while the target verifies."""

from mmspec.testing.conformance.example import Example
from mmspec.testing.tiny_models import small
from mmspec_zoo.overlap.mirror_sd import MirrorOptions
from mmspec_zoo.overlap.pearl import PearlOptions
from mmspec_zoo.overlap.saguaro import SaguaroOptions


def pearl() -> list[Example]:
    """In this process, as a trial of it: for one outcome, as published, and for others."""
    return [Example(options=PearlOptions(model=small(), executor="serial", branches=branches)) for branches in (1, 3)]


def saguaro() -> Example:
    """In this process, as a trial of it."""
    return Example(options=SaguaroOptions(model=small(), executor="serial"))


def mirror_sd() -> Example:
    """In this process, as a trial of it."""
    return Example(options=MirrorOptions(model=small(), executor="serial"))
