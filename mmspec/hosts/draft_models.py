"""Live models as targets, of the class that the installed plugins have for them; draft models among them."""

from typing import Any

import torch

from mmspec.core.protocols import Target
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.vocabulary import alike
from mmspec.registry import installed


def own_target(model: Any, drafting: bool = False) -> TransformersTarget:
    """A live model as a target, if need be in drafting mode: recurrent ones have a class of their own, with tree
    operations. Refuses a model with which drafts cannot be verified.
    """
    component = installed().target_for(model)
    factory = None if component is None else component.load()
    if not (isinstance(factory, type) and issubclass(factory, TransformersTarget)):
        factory = TransformersTarget
    return factory(model, drafting=drafting)


def drafting_target(model: Any, device: str = "cpu", dtype: torch.dtype = torch.float32) -> TransformersTarget:
    """A draft model as the installed plugins' target in drafting mode: live, and left where and as it is, or by a name
    as `load_model` takes it.
    """
    live = load_model(model, device, dtype) if isinstance(model, str) else model
    try:
        return own_target(live, drafting=True)
    except ValueError as error:
        raise type(error)(f"the draft model is refused, and not the target: {error}") from error


def stored_tokenizer(target: Target) -> Any:
    """The tokenizer that is stored with a live model; None if the model was not loaded from a place that has one."""
    name = place(target)
    try:
        return load_tokenizer(name) if name else None
    except ValueError:
        return None


def place(target: Target) -> str:
    """The folder or hub name that a live model was loaded from; "" if it is not known."""
    return target.model.config._name_or_path if isinstance(target, TransformersTarget) else ""


def refuse_other_tokenizer(small: TransformersTarget, target: Target) -> None:
    """Refuse a draft model whose ids stand for other tokens, as far as that is known, though it has as many."""
    if place(small) != place(target) and small.vocab == target.vocab:
        ours, theirs = stored_tokenizer(small), stored_tokenizer(target)
        if ours is not None and theirs is not None and not alike(theirs, ours):
            raise ValueError(
                f"the draft model ({place(small)!r}) has another tokenizer than the target ({place(target)!r}): its "
                "ids stand for other tokens; name a draft model of the target's tokenizer"
            )
