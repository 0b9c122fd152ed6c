"""Speculation-length policies by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from mmspec.core.goodput import Goodput, GoodputOptions
from mmspec.core.payoff import Payoff, PayoffOptions
from mmspec.core.policies import Confidence, Fixed, Policy
from mmspec.registry.options import option
from mmspec.registry.suggest import unknown


@dataclass(frozen=True)
class ConfidenceOptions:
    threshold: Annotated[float, Field(gt=0, lt=1)] = option(
        0.3, "stop drafting where survival falls below this; higher drafts less"
    )


POLICIES: dict[str, type | None] = {
    "fixed": None,
    "confidence": ConfidenceOptions,
    "goodput": GoodputOptions,
    "payoff": PayoffOptions,
}
"""The names of policies and the options that each takes, if it takes any."""


def options_of(policy: str | Policy | None) -> type | None:
    """The options of a policy, where it was given by name and has any; refuses an unknown name."""
    if isinstance(policy, str) and policy not in POLICIES:
        raise ValueError(unknown("policy", policy, POLICIES))
    return POLICIES[policy] if isinstance(policy, str) else None


def make(policy: str | Policy | None, k: int, options: Any, width: Callable[[int], int] = int) -> Policy | None:
    """The policy itself; None is left to the decoder. `width` gives the nodes of a depth once the drafter is bound."""
    if not isinstance(policy, str):
        return policy
    if policy == "goodput":
        return Goodput(k, options, width=width)
    if policy == "payoff":
        return Payoff(k, options)
    return Confidence(k, options.threshold) if policy == "confidence" else Fixed(k)
