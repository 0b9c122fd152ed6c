"""`auto`: a method, perhaps a draft model and a policy, and the reason, for users who do not want to choose.

In this order: the method of the head that the user named; what the target's spec lists for a draft model or a rule that
the user gave; what `mmspec tune` measured here; what the model's card says was measured to be best; what the spec lists
for any call, or for the model's device.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmspec.api.tuned import origin, tuned_for
from mmspec.hosts.devices import device_of
from mmspec.hosts.loading import PREFIX, header
from mmspec.registry import DefaultMethod, Registry, TargetSpec, pair
from mmspec.registry.matching import fitting
from mmspec.shipped import card_of, known_as

AUTO, PLAIN = "auto", "plain"
"""The methods that the api knows by name."""


@dataclass(frozen=True)
class Choice:
    method: str
    why: str  # the reason, in a sentence
    drafter: str | None = None  # name of a draft model, where the choice needs one
    policy: str | None = None  # name of a policy; None is the method's own
    k: int | None = None  # units to draft per round; None is the general default
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method's parts
    compile: bool | None = None  # as in `mmspec.enable`


def choose(model: Any, target: TargetSpec, draft_model: bool, rule: bool, pipeline: bool = False) -> Choice:
    """Choose for a live model.

    `draft_model` and `rule` say that the user gave them (a rule may take chains only), `pipeline` that a pipeline runs
    the model, and not its own `generate`.

    Raises:
        ValueError: A draft model was given, and the target's spec lists no method for one.
    """
    if draft_model:
        return _chosen(with_model(target), target)
    run = ("pipeline",) if pipeline else ()
    asked = default_of(target, *run, "rule") if rule else None
    if asked:
        return _chosen(asked, target)
    found = None if default_of(target, *run) else tuned_for(model)  # `mmspec tune` measures texts
    if found is not None:
        with_head = f" with {found.drafter}" if found.drafter else ""
        faster = f"which mmspec tune found to be the fastest here ({found.speedup:.2f} × plain decoding)"
        why = f"{found.method}{with_head}, {faster}"
        return Choice(found.method, why, found.drafter, found.policy, found.k, found.options, found.compile or None)
    name = known_name(model)
    card = card_of(name.removeprefix(PREFIX)) if name else {}
    method = card.get("default_method", AUTO)
    if method != AUTO:
        drafter = card.get("drafter")
        using = f" with {drafter}" if drafter else ""
        why = f"{method}{using}, because the card of {name} names it"
        return Choice(method, why, drafter, card.get("default_policy"), card.get("k"), card.get("options", {}))
    usual = default_of(target, *run, "", device_of(model).type)
    return _chosen(usual, target) if usual else Choice(AUTO, f"{AUTO}: the target {target.name} names no method")


def default_of(target: TargetSpec, *when: str) -> DefaultMethod | None:
    """The first method that a target's spec lists for one of these occasions; None where there is none."""
    return next((default for default in target.default_methods if default.when in when), None)


def with_model(target: TargetSpec) -> DefaultMethod:
    """The method that a target's spec lists for a draft model.

    Raises:
        ValueError: The spec lists none; says what to do.
    """
    found = default_of(target, "model")
    if found is None:
        raise ValueError(
            f"the target {target.name!r} names no method for a draft model; give a method= that drafts with one "
            "(`mmspec methods` lists them), or leave out the model"
        )
    return found


def of_head(registry: Registry, target: TargetSpec, model: Any) -> Choice | None:
    """The method whose drafter drafts with a head, if a name is one of a head and not of a smaller model.

    Only of a name it is known what is stored there.

    Raises:
        ValueError: Nothing can be read under that name.
    """
    if not isinstance(model, str):
        return None
    fits = fitting(registry, target.offers)
    pairs = [pair(registry, method) for method in registry.components("method") if method.name in fits]
    reading = [(found.method, found.drafter) for found in pairs if found.drafter and found.drafter.reads]
    config, keys = header(model) if reading else ({}, ())
    for method, drafter in reading:
        if method.rule is None and drafter.is_for(config, keys):
            return Choice(method.name, f"{method.name}, because {model!r} is a head that {drafter.name} drafts with")
    return None


def _chosen(default: DefaultMethod, target: TargetSpec) -> Choice:
    why = default.why or f"{default.method}, which the target {target.name} is used with"
    return Choice(default.method, why, policy=default.policy, k=default.k)


def known_name(model: Any) -> str:
    """The name of a live model that is shipped, alone or as a part of a pipeline, or was fetched; "" of any other."""
    place = origin(model)
    return known_as(place) or known_as(place.parent)
