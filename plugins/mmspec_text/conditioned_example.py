"""What the conformance kit tries the methods on whose target is not the model alone."""

from mmspec.testing.conformance.example import Example
from mmspec.testing.tiny_models import small
from mmspec_text.drafters.ambedkar import AmbedkarOptions


def ambedkar() -> list[Example]:
    """A condition in front of the prompts, and one behind their first token."""
    return [Example(options=AmbedkarOptions(model=small(), condition=[2, 5, 5, 1], behind=behind)) for behind in (0, 1)]
