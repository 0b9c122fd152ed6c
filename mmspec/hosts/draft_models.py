"""A smaller model as a target of its own, which drafts in another target's call."""

import inspect
from typing import Any

from mmspec.hosts.loading import load_model
from mmspec.hosts.target import TransformersTarget
from mmspec.registry import installed


def drafting_target(model: Any) -> TransformersTarget:
    """The target that some plugin has for a live model, for drafting in the calls of another target.

    Args:
        model: A live model, or a name as `load_model` takes it.

    Raises:
        ValueError: It cannot be loaded, or not be speculated over.
    """
    if isinstance(model, str):
        model = load_model(model)
    known = installed().target_for(model)  # recurrent models have a target of their own
    factory = TransformersTarget if known is None else known.load()
    taking = factory if "drafting" in inspect.signature(factory).parameters else TransformersTarget
    made: TransformersTarget = taking(model, drafting=True)
    return made
