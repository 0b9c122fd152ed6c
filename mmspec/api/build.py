"""From a method's name to a decoder: the registry's parts, their options, the live objects that users pass."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import nn

from mmspec.api import policies
from mmspec.api.choice import AUTO, choose
from mmspec.api.mistakes import ARGUMENTS, MEANT
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.host import HostDrafterAdapter
from mmspec.core.policies import Policy
from mmspec.core.protocols import Drafter
from mmspec.core.refusal import OutOfScopeError
from mmspec.registry import Component, Registry, installed, pair, require
from mmspec.registry.matching import HOME
from mmspec.registry.numbers import whole
from mmspec.registry.options import build, route
from mmspec.registry.suggest import unknown

DEFAULT_K = 5


def decoder_for(
    model: Any,
    method: str = "auto",
    *,
    drafter: Any = None,
    rule: Any = None,
    k: int | None = None,
    policy: str | Policy | None = None,
    options: Mapping[str, Any] | None = None,
    beside: Sequence[str] = (),
) -> Decoder:
    """Put a decoder together for a live model.

    Args:
        model: What some plugin has a target for.
        method: A method's name; `auto` is resolved by `mmspec.api.choice`.
        drafter: A drafter's name, a model (live, or its name), or an object that proposes.
        rule: A rule's name or object.
        k: Units to draft per round.
        policy: `fixed`, `confidence`, `goodput`, or an object.
        options: Flat option values of drafter, rule and policy.
        beside: Further arguments of the face that asks, which an unknown option may have been meant for.

    Raises:
        ValueError: A name, an option or the combination is wrong; says what would do.
    """
    registry, given = installed(), dict(options or {})
    target = _target(registry, model)
    live, name = _drafter_given(registry, drafter, given)
    if method == "plain" and drafter is not None:
        raise ValueError("the method 'plain' drafts nothing; leave out drafter=, or the method")
    why, preferred = "", DEFAULT_K
    near: tuple[str, ...] = ()
    if method == AUTO and drafter is not None and "model" not in given:
        method, why = "plain", "the drafter that was given"
    elif method == AUTO:
        choice = choose(model, target, draft_model="model" in given, rule=rule is not None)
        method, why, policy = choice.method, choice.why, policy if policy is not None else choice.policy
        preferred, near = choice.k or preferred, (target.owner, HOME)
        if choice.drafter:
            given["model"] = choice.drafter
    elif "model" in given and drafter is not None and not _takes_model(registry, method):
        name = f"{HOME}:draft-model"
    ruled = rule is not None and not isinstance(rule, str)
    if ruled and not hasattr(rule, "accept"):
        raise TypeError(f"a rule is a name or an object with `accept`, not {type(rule).__name__}")
    offers = target.offers if live is None else None  # a live drafter drafts, whatever the method says
    pairing = pair(registry, method, name, None if ruled else rule, offers, near)
    if live is None and not ruled:
        require(registry, pairing, target)
    k = budget(k, given, preferred)
    parts = {
        "drafter": pairing.drafter.load_options() if pairing.drafter and live is None else None,
        "rule": None if ruled else pairing.rule.load_options(),
        "policy": policies.options_of(policy),
    }
    routed = route({**pairing.method.defaults, **given}, parts, [*ARGUMENTS, *beside], MEANT)
    made: dict[str, Any] = {
        part: build(declared, routed[part], part) for part, declared in parts.items() if declared is not None
    }
    return Decoder(
        target.load()(model),
        live if live is not None else _made(pairing.drafter, made.get("drafter")),
        rule if ruled else _made(pairing.rule, made.get("rule")),
        k=k,
        policy=policies.make(policy, k, made.get("policy")),
        name=method if live is None else type(drafter).__name__,
        why=why,
    )


def models_of(decoder: Decoder) -> list[nn.Module]:
    """The live models that a decoder runs: the target's, and the draft model's if there is one."""
    drafting = getattr(decoder.drafter, "model", None)
    targets = (decoder.target, drafting, getattr(drafting, "target", None))  # one in another vocabulary is translated
    models = (getattr(target, "model", None) for target in targets)
    return [model for model in models if isinstance(model, nn.Module)]


def _target(registry: Registry, model: Any) -> Component:
    found = registry.target_for(model)
    if found is None:
        kind = getattr(getattr(model, "config", None), "model_type", None) or type(model).__name__
        known = "; ".join(f"{c.name}: {c.summary}" for c in registry.components("target")) or "none"
        raise OutOfScopeError(f"no installed plugin has a target for {kind!r}. There is {known}")
    return found


def _drafter_given(registry: Registry, drafter: Any, given: dict[str, Any]) -> tuple[Drafter | None, str | None]:
    """A drafter as users pass it: (object, None), or (None, a component's name); a model becomes an option."""
    if drafter is None:
        return None, None
    if isinstance(drafter, str):
        if any(drafter == c.name or drafter == c.qualified for c in registry.components("drafter")):
            return None, drafter
        if "/" not in drafter and not Path(drafter).exists():
            raise ValueError(unknown("drafter", drafter, [c.name for c in registry.components("drafter")]))
    elif hasattr(drafter, "propose"):
        return (drafter if hasattr(drafter, "bind") else HostDrafterAdapter(drafter)), None
    elif not hasattr(drafter, "generate"):
        raise TypeError(f"a drafter is a name, a model or an object with `propose`, not {type(drafter).__name__}")
    if "model" in given or "drafter.model" in given:
        raise ValueError("the draft model is given twice, as drafter= and as the option model=; give one of them")
    given["model"] = drafter
    return None, None


def _takes_model(registry: Registry, method: str) -> bool:
    """Whether a method's own drafter drafts with a model."""
    drafter = pair(registry, method).drafter
    options = drafter.load_options() if drafter else None
    return options is not None and "model" in {field.name for field in fields(options)}


def budget(k: int | None, given: dict[str, Any], preferred: int) -> int:
    alias = given.pop("num_speculative_tokens", None)
    if k is not None and alias is not None:
        raise ValueError("k and num_speculative_tokens are one number; give one of them")
    wanted = k if k is not None else alias if alias is not None else preferred
    return whole("k", wanted)


def _made(component: Component | None, options: Any) -> Any:
    if component is None:
        return None
    factory = component.load()
    return factory() if options is None else factory(options)
