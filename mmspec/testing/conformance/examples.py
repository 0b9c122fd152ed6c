"""The examples of a component: what its author gives, and what the kit itself has for targets of the core."""

import importlib
from typing import Any

from mmspec.registry.specs import FactorySpec, Spec
from mmspec.testing.conformance.example import Example, HasExample


def _transformers() -> Example:
    from mmspec.testing.tiny_models import transformers

    return transformers()


OWN = {"mmspec.hosts.target:TransformersTarget": _transformers}
"""Examples of factories that lie below this package and therefore cannot name theirs."""


def examples_of(component: Spec) -> list[Example]:
    """The examples of a target, drafter or rule; none if it has no factory, or its factory names none.

    Raises:
        TypeError: The attribute `example` gives something else.
    """
    if not isinstance(component, FactorySpec):
        return []
    factory = component.load()
    example: Any = OWN.get(str(component.factory))
    if example is None and isinstance(factory, HasExample):
        example = factory.example
    if example is None:
        return []
    if isinstance(example, str):
        module, _, name = example.partition(":")
        example = getattr(importlib.import_module(module), name)
    result = example()
    examples = list(result) if isinstance(result, list | tuple) else [result]
    for each in examples:
        if not isinstance(each, Example):
            raise TypeError(f"`example` of {component.qualified!r} returns {each!r}, not an Example or a list of them")
    return examples
