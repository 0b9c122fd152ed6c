"""What the conformance kit tries a draft model with sub-models on."""

from mmspec.testing.conformance.example import Example
from mmspec.testing.tiny_models import small
from mmspec_zoo.sorted.s2d import S2DOptions


def s2d() -> list[Example]:
    """Each of two sub-models speaks now and then, and drafts end early; and one that never goes on."""
    return [
        Example(options=S2DOptions(model=small(), exits=(1, 2), sure=0.3, stop=0.18)),
        Example(options=S2DOptions(model=small(), exits=(1, 2), sure=0.0)),
    ]
