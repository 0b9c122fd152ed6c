"""A smaller model as a target of its own, which drafts in another target's call."""

from typing import Any

from mmspec.hosts.loading import load_model
from mmspec.hosts.target import TransformersTarget
from mmspec.registry import installed


def drafting_target(model: Any) -> TransformersTarget:
    """A draft model as a target: the installed plugins' target for it, in drafting mode.

    Args:
        model: A live model, or a name as `load_model` takes it.

    Raises:
        ValueError: The model cannot be loaded, or drafts cannot be verified with it.
    """
    if isinstance(model, str):
        model = load_model(model)
    component = installed().target_for(model)  # recurrent models have a target class of their own
    factory = None if component is None else component.load()
    if not (isinstance(factory, type) and issubclass(factory, TransformersTarget)):
        factory = TransformersTarget
    return factory(model, drafting=True)
