"""From what a user says to a plan: the method that is meant, its parts, their options, and how long drafts are.

`auto` takes, in this order: the method of the head that the user named; what the target's spec lists for a draft model
or a rule that the user gave; what `mmspec tune` measured here; on a CPU what the model's card says was measured to be
best; what the spec lists for any call, or for the model's device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from mmspec.api.refusals import ARGUMENTS, MEANT, asked_tokens, refuse_non_models
from mmspec.api.tuned import origin, tuned_for
from mmspec.core.capabilities import TargetAware
from mmspec.core.compile.captured import Compile
from mmspec.core.drafters.host import HostDrafter, HostDrafterAdapter
from mmspec.core.policies import Policy
from mmspec.core.promise import Shape
from mmspec.core.protocols import Drafter
from mmspec.core.refusal import OutOfScopeError
from mmspec.core.rules import Rule
from mmspec.hosts.devices import device_of
from mmspec.hosts.loading import PREFIX, header
from mmspec.registry import DefaultMethod, Pairing, PolicySpec, Registry, TargetSpec, installed, pair, require
from mmspec.registry.matching import HOME, fitting
from mmspec.registry.numbers import whole
from mmspec.registry.options import build, route
from mmspec.registry.plugin import CORE
from mmspec.registry.suggest import unknown
from mmspec.shipped import card_of, known_as

AUTO, PLAIN = "auto", "plain"  # the methods that the api knows by name


@dataclass(frozen=True)
class Choice:
    method: str
    why: str  # the reason, in a sentence
    drafter: str | None = None  # name of a draft model, where the choice needs one
    policy: str | None = None  # name of a policy; None is the method's own
    k: int | None = None  # units to draft per round; None is the general default
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method's parts
    compile: bool | None = None  # as in `mmspec.enable`


@dataclass(frozen=True)
class Plan:
    """The parts of a decoder for a live model, decided on and checked before the weights of a draft model are read."""

    target: TargetSpec
    given: Mapping[str, Any]  # what the target asks for beside the model
    choice: Choice  # the method and the reason for it
    pairing: Pairing  # the method's parts
    drafter: Drafter | None  # a live one, in the place of the method's
    rule: Rule | None  # likewise
    policy: PolicySpec | Policy | None
    options: Mapping[str, Any]  # of `drafter`, `rule` and `policy`, where they have any
    k: int | None  # the user's number
    lengths: Sequence[tuple[int | None, str]]  # other numbers, and who says them: a head's own stands before the last
    name: str  # of the decoder, in reports
    shape: Shape
    compile: Compile


def resolve(
    model: Any,
    method: str = AUTO,
    *,
    drafter: Any = None,
    rule: Any = None,
    k: int | None = None,
    policy: str | Policy | None = None,
    shape: Shape = None,
    compile: Compile = None,
    options: Mapping[str, Any] | None = None,
    beside: Sequence[str] = (),
    pipeline: bool = False,
) -> Plan:
    """The plan for a live model; arguments and errors as in `mmspec.enable`, options flat.

    `beside` names further arguments that the caller takes, for an error's suggestions; under `pipeline`, `auto` chooses
    for a pipeline.
    """
    registry, given = installed(), dict(options or {})
    target = _target(registry, model, given)
    asked_for = {name: given.pop(name) for name in target.asks}
    live, name = _drafter_given(registry, drafter, given)
    if method == PLAIN and drafter is not None:
        raise ValueError("the method 'plain' drafts nothing; leave out drafter=, or the method")
    ruled = None if isinstance(rule, str) else rule
    if ruled is not None and not isinstance(ruled, Rule):
        raise TypeError(f"a rule is a name or an object with `accept`, not {type(rule).__name__}")
    choice, near = Choice(method, ""), tuple[str, ...]()
    if method == AUTO and drafter is not None and "model" not in given:
        choice = Choice(PLAIN, "the drafter that was given")
    elif method == AUTO:
        head = of_head(registry, target, given.get("model"))
        choice = head or choose(model, target, "model" in given, rule is not None, pipeline)
        near = (target.owner, HOME)
        given |= {"model": choice.drafter} if choice.drafter else {}
    elif "model" in given and drafter is not None and not _takes_model(registry, method):
        name = _model_drafter(registry, target, given["model"])
    offers = target.offers if live is None else None  # a live drafter drafts, whatever the method says
    pairing = pair(registry, choice.method, name, rule if isinstance(rule, str) else None, offers, near)
    if live is None and ruled is None:
        require(registry, pairing, target)
    asked, paced = asked_tokens(given.get("model")), _policy(registry, policy, choice, target)
    wanted = number_of(k, given.pop("num_speculative_tokens", None))
    accelerated = live is None and name is None and device_of(model).type not in ("cpu", "meta")
    values = pairing.method.values_for(accelerated)
    usual = values.pop("k")
    parts = {
        "drafter": pairing.drafter.load_options() if pairing.drafter and live is None else None,
        "rule": pairing.rule.load_options() if ruled is None else None,
        "policy": paced.load_options() if isinstance(paced, PolicySpec) else None,
    }
    return Plan(
        target=target,
        given=asked_for,
        choice=choice,
        pairing=pairing,
        drafter=live,
        rule=ruled,
        policy=paced,
        options=_options(parts, values, choice.options, given, [*ARGUMENTS, *beside, *asked_for]),
        k=wanted,
        lengths=[
            (asked, "its draft model's generation_config"),
            (choice.k, "the choice of auto"),
            (usual, f"the method {choice.method}"),
        ],
        name=choice.method if live is None else type(drafter).__name__,
        shape=shape,
        compile=choice.compile if compile is None and shape != "any" else compile,
    )


def choose(
    model: Any, target: TargetSpec, draft_model: bool, rule: bool, pipeline: bool = False, device: str = ""
) -> Choice:
    """Choose for a live model.

    `draft_model` and `rule` say that the user gave them (a rule may take chains only), `pipeline` that a pipeline runs
    the model, and not its own `generate`; `device` is the kind of device it is for, by default the model's.
    """
    if draft_model:
        return _chosen(with_model(target), target)
    run = ("pipeline",) if pipeline else ()
    asked = default_of(target, *run, "rule") if rule else None
    if asked:
        return _chosen(asked, target)
    found = None if default_of(target, *run) else tuned_for(model)  # `mmspec tune` measures texts
    if found is not None:
        faster = f"which mmspec tune found to be the fastest here ({found.speedup:.2f} × plain decoding)"
        why = f"{_with(found.method, found.drafter)}, {faster}"
        return Choice(found.method, why, found.drafter, found.policy, found.k, found.options, found.compile or None)
    device = device or device_of(model).type
    usual = default_of(target, *run, "", device)
    name = known_name(model) if device == "cpu" or usual is None else ""  # cards have what was measured on a CPU
    card = card_of(name.removeprefix(PREFIX)) if name else {}
    method = card.get("default_method", AUTO)
    if method != AUTO:
        drafter = card.get("drafter")
        why = f"{_with(method, drafter)}, because the card of {name} names it"
        return Choice(method, why, drafter, card.get("default_policy"), card.get("k"), card.get("options", {}))
    return _chosen(usual, target) if usual else Choice(AUTO, f"{AUTO}: the target {target.name} names no method")


def default_of(target: TargetSpec, *when: str) -> DefaultMethod | None:
    """The first method that a target's spec lists for one of these occasions; None where there is none."""
    return next((default for default in target.default_methods if default.when in when), None)


def with_model(target: TargetSpec) -> DefaultMethod:
    """The method that a target's spec lists for a draft model; refuses a target without one."""
    found = default_of(target, "model")
    if found is None:
        raise ValueError(
            f"the target {target.name!r} names no method for a draft model; give a method= that drafts with one "
            "(`mmspec methods` lists them), or leave out the model"
        )
    return found


def of_head(registry: Registry, target: TargetSpec, model: Any) -> Choice | None:
    """The method whose drafter drafts with a head, if a name, of which alone it is known what is stored there, is one
    of a head and not of a smaller model.
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


def _with(method: str, drafter: str | None) -> str:
    return f"{method} with {drafter}" if drafter else method


def _chosen(default: DefaultMethod, target: TargetSpec) -> Choice:
    why = default.why or f"{default.method}, which the target {target.name} is used with"
    return Choice(default.method, why, policy=default.policy, k=default.k, options=default.defaults)


def known_name(model: Any) -> str:
    """The name of a live model that is shipped, alone or as a part of a pipeline, or was fetched; "" of any other."""
    place = origin(model)
    return known_as(place) or known_as(place.parent)


def _options(
    parts: Mapping[str, type | None],
    of_method: Mapping[str, Any],
    of_choice: Mapping[str, Any],
    given: Mapping[str, Any],
    names: Sequence[str],
) -> dict[str, Any]:
    """The options of every part that has any: the user's, then the choice's, then the method's."""
    # Another drafter or rule may have other options than those that the method sets.
    known = {option.name for declared in parts.values() if declared for option in fields(declared)}
    usual = {name: value for name, value in of_method.items() if name in known}
    usually, routed = (route(said, parts, names, MEANT) for said in ({**usual, **of_choice}, given))
    return {
        part: build(declared, {**usually[part], **routed[part]}, part)
        for part, declared in parts.items()
        if declared is not None
    }


def _policy(
    registry: Registry, policy: str | Policy | None, choice: Choice, target: TargetSpec
) -> PolicySpec | Policy | None:
    """The policy that the user names or gives; else the one that `auto` takes with its method, if it takes any."""
    if policy is None and choice.policy is not None:
        found: PolicySpec = registry.get("policy", choice.policy, (target.owner, CORE))
        return found
    return registry.get("policy", policy) if isinstance(policy, str) else policy


def _target(registry: Registry, model: Any, given: Mapping[str, Any]) -> TargetSpec:
    """The target that asks for what is given beside the model, or else the one that is for the model."""
    asking = registry.target_asking(name for name, value in given.items() if value is not None)
    found = asking or registry.target_for(model)
    if found is None:
        kind = getattr(getattr(model, "config", None), "model_type", None) or type(model).__name__
        there = (*registry.components("target"), *registry.components("adapter"))
        known = "; ".join(f"{spec.name}: {spec.summary}" for spec in there) or "none"
        raise OutOfScopeError(f"no installed plugin has a target for {kind!r}. There is {known}")
    missing = [name for name in found.asks if given.get(name) is None]
    if missing:
        raise ValueError(f"{missing[0]}= is missing: the target {found.name!r} takes {found.asked}")
    return found


def _drafter_given(registry: Registry, drafter: Any, given: dict[str, Any]) -> tuple[Drafter | None, str | None]:
    """A drafter as users pass it: (object, None), or (None, a name in the registry); a model becomes an option."""
    if drafter is None:
        return None, None
    if isinstance(drafter, str):
        if any(drafter == c.name or drafter == c.qualified for c in registry.components("drafter")):
            return None, drafter
        if "/" not in drafter and not Path(drafter).exists():
            raise ValueError(unknown("drafter", drafter, [c.name for c in registry.components("drafter")]))
    elif isinstance(drafter, HostDrafter):
        return (cast(Drafter, drafter) if isinstance(drafter, TargetAware) else HostDrafterAdapter(drafter)), None
    elif not hasattr(drafter, "generate"):
        refuse_non_models(drafter, "drafter=")
        raise TypeError(f"a drafter is a name, a model or an object with `propose`, not {type(drafter).__name__}")
    if "model" in given or "drafter.model" in given:
        raise ValueError("the draft model is given twice, as drafter= and as the option model=; give one of them")
    given["model"] = drafter
    return None, None


def _takes_model(registry: Registry, method: str) -> bool:
    drafter = pair(registry, method).drafter
    options = drafter.load_options() if drafter else None
    return options is not None and "model" in {field.name for field in fields(options)}


def _model_drafter(registry: Registry, target: TargetSpec, model: Any) -> str:
    """The drafter that runs a model or a head for a target, whatever the method's own drafter is."""
    choice = of_head(registry, target, model)
    method = choice.method if choice else with_model(target).method
    drafter = pair(registry, method, near=(target.owner, HOME)).drafter
    assert drafter is not None
    return drafter.qualified


def number_of(k: int | None, alias: int | None) -> int | None:
    """The user's number of units to draft per round, said as `k` or as `num_speculative_tokens`; refuses both."""
    if k is not None and alias is not None:
        raise ValueError("k and num_speculative_tokens are one number; give one of them")
    wanted = k if k is not None else alias
    return None if wanted is None else whole("k", wanted)
