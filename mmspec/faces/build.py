"""From a method's name to a decoder: the registry's parts, their options, the live objects that users pass."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.host import Hosted
from mmspec.core.policies import Confidence, Fixed, Policy
from mmspec.core.protocols import Drafter
from mmspec.core.rules.rule import Rule
from mmspec.registry import Component, Registry, installed, pair, require
from mmspec.registry.options import build, route
from mmspec.registry.suggest import unknown

DEFAULT_K = 5


@dataclass(frozen=True)
class ConfidenceOptions:
    """Options of the policy `confidence`."""

    threshold: Annotated[float, Field(gt=0, lt=1)] = field(
        default=0.3, metadata={"help": "stop drafting where survival falls below this; higher drafts less"}
    )


_POLICIES: dict[str, type | None] = {"fixed": None, "confidence": ConfidenceOptions}


def decoder_for(
    model: Any,
    method: str = "auto",
    *,
    drafter: Any = None,
    rule: Any = None,
    k: int | None = None,
    policy: str | Policy | None = None,
    options: Mapping[str, Any] | None = None,
) -> Decoder:
    """Put a decoder together for a live model.

    Args:
        model: What some plugin has a target for.
        method: A method's name, or `auto`: `draft-model` when a drafter model is given, else `prompt-lookup`.
        drafter: A drafter's name, a model (live, or its name), or an object that proposes.
        rule: A rule's name or object.
        k: Units to draft per round.
        policy: `fixed`, `confidence`, or an object.
        options: Flat option values of drafter, rule and policy.

    Raises:
        ValueError: A name, an option or the combination is wrong; says what would do.
    """
    registry = installed()
    target = _target(registry, model)
    given = dict(options or {})
    live, name = _drafter_given(registry, drafter, given)
    if method == "auto":
        method = "draft-model" if "model" in given else "prompt-lookup"
    pairing = pair(registry, method, name, rule if isinstance(rule, str) else None)
    if live is None and (rule is None or isinstance(rule, str)):
        require(registry, pairing, target)
    k = int(given.pop("num_speculative_tokens", DEFAULT_K)) if k is None else k
    policies = _POLICIES.get(policy) if isinstance(policy, str) else None
    parts = {
        "drafter": pairing.drafter.load_options() if pairing.drafter and live is None else None,
        "rule": pairing.rule.load_options() if not _is_object(rule) else None,
        "policy": policies,
    }
    routed = route({**pairing.method.defaults, **given}, parts)
    made = {part: build(parts[part], routed[part], part) for part in parts if parts[part] is not None}
    return Decoder(
        target.load()(model),
        live if live is not None else _made(pairing.drafter, made.get("drafter")),
        rule if _is_object(rule) else _made(pairing.rule, made.get("rule")),
        k=k,
        policy=_policy(policy, k, made.get("policy")),
        name=method,
    )


def _target(registry: Registry, model: Any) -> Component:
    found = registry.target_for(model)
    if found is None:
        kind = getattr(getattr(model, "config", None), "model_type", None) or type(model).__name__
        known = ", ".join(c.name for c in registry.components("target")) or "none"
        raise ValueError(f"no installed plugin has a target for {kind!r}; targets: {known}")
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
        return (drafter if hasattr(drafter, "bind") else Hosted(drafter)), None
    elif not hasattr(drafter, "generate"):
        raise TypeError(f"a drafter is a name, a model or an object with `propose`, not {type(drafter).__name__}")
    given["model"] = drafter
    return None, "draft-model"


def _policy(policy: str | Policy | None, k: int, options: Any) -> Policy | None:
    if policy is None or not isinstance(policy, str):
        return policy
    if policy not in _POLICIES:
        raise ValueError(unknown("policy", policy, _POLICIES))
    return Fixed(k) if policy == "fixed" else Confidence(k, options.threshold)


def _made(component: Component | None, options: Any) -> Any:
    if component is None:
        return None
    factory = component.load()
    return factory() if options is None else factory(options)


def _is_object(rule: Rule | str | None) -> bool:
    return rule is not None and not isinstance(rule, str)
