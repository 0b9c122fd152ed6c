"""The `generate` of a model's class: which classes `enable` can speed up, and how their arguments are called.

What replaces `generate` calls the class's own with `custom_generate=`, which has to arrive at transformers' own.
Classes may take arguments in an order of their own, hand a call on to a part, or run a loop of their own.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import GenerationMixin

from mmspec.core.refusal import OutOfScopeError
from mmspec.hosts.model_info import unwrapped
from mmspec.registry import TargetSpec, installed


def refuse_class(model: Any, target: TargetSpec | None) -> None:
    """Refuse a model whose `generate` cannot be replaced; says what to use instead."""
    kind = type(model).__name__
    if "generate" in getattr(model, "__dict__", {}):
        raise ValueError("this model's generate is replaced already, and not by mmspec; put its own back first")
    if target is not None and target.pipeline and "text" not in target.offers:
        raise OutOfScopeError(
            f"a {kind} is run by a {_pipeline(target)}, which speculates as it is, and not by generate: make one of "
            "the model and its other parts, or load one with mmspec.Pipeline.from_pretrained(name)"
        )
    if target is None or unwrapped(model) is not model:  # who looks for a target says so; PEFT hands everything on
        return
    own = getattr(type(model), "generate", None)
    if own is None:
        raise OutOfScopeError(f"a {kind} has no generate that could be replaced; pass the model that generates")
    written, takes = inspect.unwrap(own), inspect.signature(own).parameters.values()
    stock = own is GenerationMixin.generate or not inspect.isfunction(written)
    names = () if stock else written.__code__.co_names
    if "super" not in names and isinstance(model, nn.Module):
        for name, part in model.named_children():
            if name in names and isinstance(part, GenerationMixin):
                reads = any(inner.endswith("crossattention") for inner, _ in part.named_modules())
                advice = (
                    ", which reads an encoder's states beside the text; only decoders can be speculated over"
                    if reads
                    else f": enable that part, mmspec.enable(model.{name}, …), and call generate of the whole as before"
                )
                raise OutOfScopeError(
                    f"generate of a {kind} hands the call on to its part {name}, a {type(part).__name__}{advice}"
                )
    passed = any(each.name == "custom_generate" or each.kind is each.VAR_KEYWORD for each in takes)
    if not stock and not (passed and "generate" in names):  # it calls another's `generate`
        raise OutOfScopeError(
            f"generate of a {kind} is a loop of its own, which calls no generate of transformers; pass the part of it "
            "that has one, if there is one"
        )


def arguments_of(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of `generate` by name, in the order that the model's class gives them.

    Raises:
        TypeError: There are more than the class takes by position, or one is given twice.
    """
    own, kind = list(inspect.signature(type(model).generate).parameters.values())[1:], inspect.Parameter
    names = [each.name for each in own if each.kind in (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD)]
    if any(each.kind is kind.VAR_POSITIONAL for each in own):  # handed on to transformers' own
        names += list(inspect.signature(GenerationMixin.generate).parameters)[1 + len(names) :]
    given = dict(zip(names, args, strict=False))
    if len(args) > len(names) or given.keys() & kwargs.keys():
        twice = "".join(f"; {name} is given twice" for name in given.keys() & kwargs.keys())
        raise TypeError(f"generate of a {type(model).__name__} takes {', '.join(names)} by position{twice}")
    return {**given, **kwargs}


def refuse_mode(model: Any, arguments: Mapping[str, Any]) -> None:
    """Refuse a call that asks for something else than text, as Janus' argument `generation_mode` does."""
    mode = arguments.get("generation_mode")
    if mode in (None, "text"):
        return
    target = installed().target_of([type(model).__name__])
    instead = f"a {_pipeline(target)} of this model drafts there; else" if target and target.pipeline else "for it"
    raise OutOfScopeError(f"generation_mode={mode!r} is a loop of the model's own: {instead} call disable() first")


def _pipeline(target: TargetSpec) -> str:
    return target.pipeline.rpartition(":")[2]
