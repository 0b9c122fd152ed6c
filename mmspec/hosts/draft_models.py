"""A smaller model as a target of its own, which drafts in another target's call."""

from typing import Any

from mmspec.hosts.loading import load_model
from mmspec.hosts.own_target import own_target
from mmspec.hosts.target import TransformersTarget


def drafting_target(model: Any) -> TransformersTarget:
    """A draft model as a target: the installed plugins' target for it, in drafting mode.

    Args:
        model: A live model, or a name as `load_model` takes it.

    Raises:
        ValueError: The model cannot be loaded, or mmspec cannot run it; says that it is the draft model.
    """
    live = load_model(model) if isinstance(model, str) else model
    try:
        return own_target(live, drafting=True)
    except ValueError as error:
        raise type(error)(f"the draft model is refused, and not the target: {error}") from error
