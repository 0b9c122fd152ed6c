"""What the conformance kit tries the retrieving drafters on."""

from mmspec.testing.conformance.example import Example
from mmspec.testing.tiny_models import small
from mmspec_text.drafters.retrieval.rasd import RasdOptions
from mmspec_text.drafters.retrieval.rest import RestOptions

TEXTS = tuple(tuple((start * step + 1) % 3 for start in range(40)) for step in (1, 2, 5, 7))
"""Texts of the three ids that every toy has."""


def rest() -> list[Example]:
    """A datastore that has every suffix."""
    return [Example(options=RestOptions(corpus=_texts(), nodes=8))]


def rasd() -> Example:
    """The same datastore beside a small model."""
    return Example(options=RasdOptions(corpus=_texts(), model=small(), width=3, nodes=6, retrieved=4))


def _texts() -> list[list[int]]:
    return [list(text) for text in TEXTS]
