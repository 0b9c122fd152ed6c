"""`learn=` of `mmspec.enable`: who can learn, and what is refused."""

from typing import Any

import torch

from mmspec.core.capabilities import Learns
from mmspec.core.compile.choice import Compile
from mmspec.core.decoder import Decoder
from mmspec.core.learning import Learner, Learning
from mmspec.registry import DrafterSpec, Registry


def learning_of(learn: Any) -> Learning | None:
    """The options behind `learn=`; None: no learning."""
    if learn is None or learn is False:
        return None
    if learn is True:
        return Learning()
    if not isinstance(learn, Learning):
        raise TypeError(f"learn= is True, False or mmspec.Learning(…), not {type(learn).__name__}")
    return learn


def refuse_unteachable(registry: Registry, drafter: Any, compile: Compile) -> None:
    """Refuse a drafter that cannot learn, before any weights are read. The drafter is live, a spec, or None."""
    if compile:
        raise ValueError(
            "learn= and compile= do not go together: captured rounds may hold copies of a drafter's weights, which a "
            "lesson would not reach; leave out one of them"
        )
    if isinstance(drafter, DrafterSpec):
        able, name = _can_learn(drafter), drafter.name
    else:
        able, name = isinstance(drafter, Learns), "plain" if drafter is None else type(drafter).__name__
    if not able:
        names = ", ".join(sorted(spec.name for spec in registry.components("drafter") if _can_learn(spec)))
        raise ValueError(f"the drafter {name} cannot learn; those that can: {names or 'none'}")


def learner_of(decoder: Decoder, learning: Learning | None) -> Learner | None:
    """The learner of a decoder; None without learning.

    Raises:
        ValueError: The drafter cannot learn for this target, or its weights belong to inference mode.
    """
    if learning is None:
        return None
    assert isinstance(decoder.drafter, Learns), "others were refused before"
    learner = Learner(decoder.drafter, learning)
    weights = learner.lesson.weights()
    if torch.is_inference_mode_enabled() or any(weight.is_inference() for weight in weights):
        raise ValueError("weights that were made under torch.inference_mode() cannot learn; load and enable outside it")
    return learner


def _can_learn(spec: DrafterSpec) -> bool:
    factory = spec.load()
    return isinstance(factory, type) and issubclass(factory, Learns)
