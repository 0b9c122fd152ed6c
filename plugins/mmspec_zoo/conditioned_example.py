"""What the conformance kit tries the methods on whose target is not the model alone."""

from mmspec.testing.conformance.example import Example
from mmspec.testing.tiny_models import small
from mmspec_zoo.conditioned.ambedkar import AmbedkarOptions
from mmspec_zoo.conditioned.rapid import RapidOptions


def ambedkar() -> list[Example]:
    """A condition in front of the prompts, and one behind their first token."""
    return [Example(options=AmbedkarOptions(model=small(), condition=[2, 5, 5, 1], behind=behind)) for behind in (0, 1)]


def rapid() -> list[Example]:
    """The target on a part of the prompt, for itself and for the mixture; and a smaller model."""
    part = {"first": 1, "chunk": 2, "chunks": 1, "end": 3}
    return [
        Example(options=RapidOptions(**part)),
        Example(options=RapidOptions(**part, eta=2.0)),
        Example(options=RapidOptions(**part, model=small(), eta=2.0)),
    ]
