"""What the conformance kit tries the relaxed rules on."""

from mmspec.testing.conformance.example import Example
from mmspec_text.rules.rollback import RollbackOptions


def rollback() -> Example:
    """A threshold that some units of a toy are below, and some above."""
    return Example(options=RollbackOptions(threshold=1.0), strict={"threshold": 0.0})
