"""From a method's name to a decoder: the registry's parts, their options, the live objects that users pass."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import nn

from mmspec.api import policies
from mmspec.api.choice import AUTO, PLAIN, Choice, choose, of_head, with_model
from mmspec.api.learning import refuse_unteachable
from mmspec.api.refusals import ARGUMENTS, MEANT, asked_tokens, refuse_non_models
from mmspec.core.capabilities import DraftsWithModel, OwnLength, RunsModel, TargetAware, TargetWrapping, Wrapper
from mmspec.core.compile.choice import Compile
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.host import HostDrafter, HostDrafterAdapter
from mmspec.core.drafters.none import NoDraft
from mmspec.core.hidden import GivesHidden
from mmspec.core.policies import Fixed, Policy
from mmspec.core.promise import Shape
from mmspec.core.protocols import Drafter, Target
from mmspec.core.refusal import OutOfScopeError
from mmspec.core.rules import Rule
from mmspec.hosts.devices import device_of
from mmspec.registry import DrafterSpec, Registry, RuleSpec, TargetSpec, installed, pair, require
from mmspec.registry.matching import HOME
from mmspec.registry.numbers import whole
from mmspec.registry.options import build, route
from mmspec.registry.suggest import unknown

DEFAULT_K = 5
"""Units to draft per round where nobody names a number."""


def decoder_for(
    model: Any,
    method: str = "auto",
    *,
    drafter: Any = None,
    rule: Any = None,
    k: int | None = None,
    policy: str | Policy | None = None,
    shape: Shape = None,
    compile: Compile = None,
    options: Mapping[str, Any] | None = None,
    beside: Sequence[str] = (),
    learn: bool = False,
    hidden: Sequence[int] = (),
    pipeline: bool = False,
) -> Decoder:
    """Put a decoder together for a live model.

    Arguments as in `mmspec.enable`; options of drafter, rule and policy are flat. `beside` names further arguments that
    the caller takes, for an error's suggestions; `learn` asks for a drafter that can learn; `hidden` lists boundaries
    of the target's layers (`mmspec.core.hidden`) whose states its outputs are to carry; under `pipeline` `auto` chooses
    for a pipeline.

    Who says nothing of `k` gets, in this order: `generation_config.num_assistant_tokens` of a live draft model, as in
    transformers; what a card or the target's spec lists with the choice of `auto`; the length for which a head was
    trained; the method's own; `DEFAULT_K`.

    Raises:
        ValueError: A name, an option or the combination is wrong; says what would do.
    """
    registry, given = installed(), dict(options or {})
    target = _target(registry, model)
    live, name = _drafter_given(registry, drafter, given)
    if method == PLAIN and drafter is not None:
        raise ValueError("the method 'plain' drafts nothing; leave out drafter=, or the method")
    ruled = rule is not None and not isinstance(rule, str)
    if ruled and not isinstance(rule, Rule):
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
    pairing = pair(registry, choice.method, name, None if ruled else rule, offers, near)
    if live is None and not ruled:
        require(registry, pairing, target)
    if learn:
        refuse_unteachable(registry, pairing.drafter if live is None else live, compile)
    asked, policy = asked_tokens(given.get("model")), policy if policy is not None else choice.policy
    alias = given.pop("num_speculative_tokens", None)
    own_drafter, accelerated = live is None and name is None, device_of(model).type not in ("cpu", "meta")
    values = pairing.method.values_for(own_drafter and accelerated)
    usual = values.pop("k")
    compile = choice.compile if compile is None and shape != "any" else compile
    parts = {
        "drafter": pairing.drafter.load_options() if pairing.drafter and live is None else None,
        "rule": None if ruled else pairing.rule.load_options(),
        "policy": policies.options_of(policy),
    }
    # Another drafter or rule may have other options than those that the method sets.
    known = {option.name for declared in parts.values() if declared for option in fields(declared)}
    values = {name: value for name, value in values.items() if name in known}
    names = [*ARGUMENTS, *beside]
    usually, routed = (route(said, parts, names, MEANT) for said in ({**values, **choice.options}, given))
    built: dict[str, Any] = {
        part: build(declared, {**usually[part], **routed[part]}, part)
        for part, declared in parts.items()
        if declared is not None
    }
    proposes = live if live is not None else _instance(pairing.drafter, built.get("drafter"))
    own = proposes.own_length if isinstance(proposes, OwnLength) else None
    said = [
        (asked, "its draft model's generation_config"),
        (choice.k, "the choice of auto"),
        (own, "its head"),
        (usual, f"the method {choice.method}"),
    ]
    k, k_from = budget(k, alias, said)
    # Asked later, and only by some policies: the drafter is not bound yet.
    widths = {} if proposes is None else {"width": partial(_width, proposes)}
    return Decoder(
        _giving(target.load()(model), hidden, proposes),
        proposes,
        rule if ruled else _instance(pairing.rule, built.get("rule")),
        k=k,
        k_from=k_from,
        policy=policies.make(policy, k, built.get("policy"), **widths),
        name=choice.method if live is None else type(drafter).__name__,
        why=choice.why,
        shape=shape,
        compile=compile,
    )


def _width(drafter: Drafter, depth: int) -> int:
    return drafter.width(depth)


def rebound(decoder: Decoder, k: int) -> Decoder:
    """The same decoder with drafter and rule bound again, and with another `k`."""
    policy = None if isinstance(decoder.policy, Fixed) else decoder.policy
    drafter = None if isinstance(decoder.drafter, NoDraft) else decoder.drafter
    said: dict[str, Any] = {
        "name": decoder.name,
        "why": decoder.why,
        "k_from": decoder.k_from if k == decoder.k else "",
        "shape": decoder.shape,
        "compile": decoder.compile,
    }
    return Decoder(decoder.target, drafter, decoder.rule, k=k, policy=policy, **said)


def models_of(decoder: Decoder) -> list[nn.Module]:
    """The live models that a decoder runs: the target's, and the draft model's if there is one."""
    drafter = decoder.drafter
    targets: list[object] = [decoder.target, drafter.model if isinstance(drafter, DraftsWithModel) else None]
    targets += [target.target for target in targets if isinstance(target, Wrapper)]
    models = [target.model for target in targets if isinstance(target, RunsModel)]
    return [model for model in models if isinstance(model, nn.Module)]


def _target(registry: Registry, model: Any) -> TargetSpec:
    found = registry.target_for(model)
    if found is None:
        kind = getattr(getattr(model, "config", None), "model_type", None) or type(model).__name__
        there = (*registry.components("target"), *registry.components("adapter"))
        known = "; ".join(f"{spec.name}: {spec.summary}" for spec in there) or "none"
        raise OutOfScopeError(f"no installed plugin has a target for {kind!r}. There is {known}")
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


def _giving(target: Target, hidden: Sequence[int], drafter: Drafter | None) -> Target:
    """The target, with outputs that carry hidden states, if there are to be any."""
    if not hidden:
        return target
    if not isinstance(target, GivesHidden):
        raise ValueError(f"{type(target).__name__} gives no hidden states")
    if isinstance(drafter, TargetWrapping):
        raise ValueError(
            f"{type(drafter).__name__} reads hidden states of its own choice; take a method without a trained head"
        )
    return target.with_hidden(hidden)


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


def budget(k: int | None, alias: int | None, said: Sequence[tuple[int | None, str]]) -> tuple[int, str]:
    """Units to draft per round, and who says so ("" for the user).

    Args:
        k: What the user says; None: nothing.
        alias: The same, as `num_speculative_tokens`.
        said: Others' numbers, and who says them; the first that is one holds, else `DEFAULT_K`.

    Raises:
        ValueError: The user says both, or the number is no integer, or negative.
    """
    if k is not None and alias is not None:
        raise ValueError("k and num_speculative_tokens are one number; give one of them")
    wanted = k if k is not None else alias
    if wanted is not None:
        return whole("k", wanted), ""
    return next(((number, who) for number, who in said if number), (DEFAULT_K, "the general default"))


def _instance(spec: DrafterSpec | RuleSpec | None, options: Any) -> Any:
    if spec is None:
        return None
    factory = spec.load()
    return factory() if options is None else factory(options)
