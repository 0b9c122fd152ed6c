"""From a plan to a decoder, and a decoder's parts bound again."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn

from mmspec.api.plan import AUTO, Plan, resolve
from mmspec.core.capabilities import DraftsWithModel, OwnLength, Paced, RunsModel, TargetWrapping, Wrapper
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.none import NoDraft
from mmspec.core.hidden import GivesHidden
from mmspec.core.policies import Fixed, Policy, WidthAware
from mmspec.core.protocols import Drafter, Target
from mmspec.registry import DrafterSpec, PolicySpec, RuleSpec

DEFAULT_K = 5  # units to draft per round where nobody names a number


def decoder_for(model: Any, method: str = AUTO, *, hidden: Sequence[int] = (), **asked: Any) -> Decoder:
    """Put a decoder together for a live model.

    `hidden` lists boundaries of the target's layers (`mmspec.core.hidden`) whose states its outputs are to carry; the
    other arguments are those of `mmspec.api.plan.resolve`.

    Who says nothing of `k` gets, in this order: `generation_config.num_assistant_tokens` of a live draft model, as in
    transformers; what a card or the target's spec lists with the choice of `auto`; the length for which a head was
    trained; what a drafter that follows times measures; the method's own; `DEFAULT_K`.

    Raises:
        ValueError: A name, an option or the combination is wrong; says what would do.
    """
    return built(resolve(model, method, **asked), model, hidden)


def built(plan: Plan, model: Any, hidden: Sequence[int] = ()) -> Decoder:
    """The decoder of a plan; arguments as in `decoder_for`."""
    drafter, rule = plan.drafter, plan.rule
    if drafter is None:
        drafter = _made(plan.pairing.drafter, plan.options.get("drafter"))
    head = drafter.own_length if isinstance(drafter, OwnLength) else None
    *before, usual = plan.lengths
    target, said = _giving(plan.target.load()(model, **plan.given), hidden, drafter), [*before, (head, "its head")]
    if isinstance(drafter, Paced) and plan.k is None and not any(number for number, _ in said):
        said.append((drafter.paced_length(target), "measured times"))
    k, k_from = budget(plan.k, [*said, usual])
    return Decoder(
        target,
        drafter,
        _made(plan.pairing.rule, plan.options.get("rule")) if rule is None else rule,
        k=k,
        k_from=k_from,
        policy=_policy(plan, k, drafter),
        name=plan.name,
        why=plan.choice.why,
        shape=plan.shape,
        compile=plan.compile,
    )


def _policy(plan: Plan, k: int, drafter: Drafter | None) -> Policy | None:
    """The policy of a plan; None is left to the decoder."""
    if not isinstance(plan.policy, PolicySpec):
        return plan.policy
    factory, options = plan.policy.load(), plan.options.get("policy")
    policy: Policy = factory(k) if options is None else factory(k, options)
    if isinstance(policy, WidthAware) and drafter is not None:
        policy.know(partial(_width, drafter))
    return policy


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


def budget(wanted: int | None, said: Sequence[tuple[int | None, str]]) -> tuple[int, str]:
    """Units to draft per round, and who says so: the user (""), or the first of the others that says a number."""
    if wanted is not None:
        return wanted, ""
    return next(((number, who) for number, who in said if number), (DEFAULT_K, "the general default"))


def _made(spec: DrafterSpec | RuleSpec | None, options: Any) -> Any:
    if spec is None:
        return None
    factory = spec.load()
    return factory() if options is None else factory(options)
