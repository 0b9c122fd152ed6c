"""`learn=` of `mmspec.enable`: who can learn, and what is refused."""

from typing import Any

import torch

from mmspec.api.plan import Plan
from mmspec.core.capabilities import Learns
from mmspec.core.compile.choice import Compile
from mmspec.core.decoder import Decoder
from mmspec.core.learning import Learner, Learning
from mmspec.registry import DrafterSpec, installed


def learning_of(learn: Any, plan: Plan, compile: Compile) -> Learning | None:
    """The options behind `learn=`; None: no learning. Refuses a drafter that cannot learn, before weights are read."""
    if learn is None or learn is False:
        return None
    if learn is not True and not isinstance(learn, Learning):
        raise TypeError(f"learn= is True, False or mmspec.Learning(…), not {type(learn).__name__}")
    if compile:
        raise ValueError(
            "learn= and compile= do not go together: captured rounds may hold copies of a drafter's weights, which a "
            "lesson would not reach; leave out one of them"
        )
    spec, able, name = plan.pairing.drafter, False, "plain"
    if plan.drafter is not None:
        able, name = isinstance(plan.drafter, Learns), type(plan.drafter).__name__
    elif spec is not None:
        able, name = _can_learn(spec), spec.name
    if not able:
        names = ", ".join(sorted(spec.name for spec in installed().components("drafter") if _can_learn(spec)))
        raise ValueError(f"the drafter {name} cannot learn; those that can: {names or 'none'}")
    return Learning() if learn is True else learn


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
