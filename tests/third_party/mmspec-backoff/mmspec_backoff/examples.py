"""The examples on which the conformance kit tries the drafter: it finds this by the attribute `example`."""

from mmspec.authors import Example
from mmspec_backoff.drafter import BackoffOptions


def backoff() -> list[Example]:
    """Long n-grams, and short ones."""
    return [Example(), Example(options=BackoffOptions(order=1))]
