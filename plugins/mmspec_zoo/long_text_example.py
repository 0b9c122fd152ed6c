"""What the conformance kit tries a draft model within a budget on."""

from pydantic import ByteSize

from mmspec.testing.conformance.example import Example
from mmspec.testing.tiny_models import small
from mmspec_zoo.specmemo import SpecMemoOptions


def specmemo() -> list[Example]:
    """Two shapes of trees, within budgets that no batch of the kit needs; where they bind is tested with the method."""
    return [
        Example(options=SpecMemoOptions(model=small(), memory_budget=ByteSize(2**36), width=3, nodes=8)),
        Example(options=SpecMemoOptions(model=small(), memory_budget=ByteSize(2**36), form="branching")),
    ]
