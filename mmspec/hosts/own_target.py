"""The target class that the installed plugins have for a live model of transformers."""

from typing import Any

from mmspec.hosts.target import TransformersTarget
from mmspec.registry import installed


def own_target(model: Any, drafting: bool = False) -> TransformersTarget:
    """A live model as a target: recurrent models have a class of their own, with tree operations.

    Args:
        model: The live model.
        drafting: Whether it drafts in another target's calls.

    Raises:
        ValueError: Drafts cannot be verified with the model.
    """
    component = installed().target_for(model)
    factory = None if component is None else component.load()
    if not (isinstance(factory, type) and issubclass(factory, TransformersTarget)):
        factory = TransformersTarget
    return factory(model, drafting=drafting)
