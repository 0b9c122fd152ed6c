"""`auto`: a method, perhaps a draft model and a policy, and the reason, for users who do not want to choose.

In this order: a draft model that was given; what the model's card says was measured to be best; what the target's
plugin says its models are used with; else drafts that need no model, as deep as they pay: on the CPU, where every node
costs, chains from the suffix statistics; elsewhere a lookup with a tree of token recycling behind it. Under `match` a
choice can cost time, never change the output.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec import shipped
from mmspec.registry import Component
from mmspec.report.cards import block

AUTO = "auto"
DEEPEST = 10
"""Of chains whose depth the policy decides."""
_NOTHING = "no draft model and no card"


@dataclass(frozen=True)
class Choice:
    """What `auto` chose.

    Attributes:
        method: A method's name.
        why: In a sentence.
        drafter: Name of a draft model, where the choice needs one.
        policy: Name of a policy; None is the method's own.
        k: Units to draft per round; None is the general default.
    """

    method: str
    why: str
    drafter: str | None = None
    policy: str | None = None
    k: int | None = None


def choose(model: Any, target: Component, draft_model: bool, rule: bool) -> Choice:
    """Choose for a live model.

    Args:
        model: It.
        target: What runs it.
        draft_model: Whether the user gave a smaller model.
        rule: Whether the user chose a rule, which may take chains only.
    """
    own = target.default_method
    if draft_model:
        return Choice("draft-model", "draft-model, because a draft model was given")
    if rule and not own:
        return Choice("prompt-lookup", "prompt-lookup, because every rule takes its chains of copies")
    name = _shipped_name(model)
    card = block(name) if name else {}
    method = card.get("default_method", AUTO)
    if method != AUTO:
        drafter = card.get("drafter")
        using = f" with {drafter}" if drafter else ""
        why = f"{method}{using}, because the card of mmspec/{name} names it"
        return Choice(method, why, drafter, card.get("default_policy"), card.get("k"))
    if own:
        return Choice(own, f"{own}, which the target {target.name} is used with", k=target.default_k)
    if model.device.type == "cpu":
        return Choice("suffix", f"suffix, as deep as it pays: {_NOTHING}", policy="goodput", k=DEEPEST)
    return Choice(AUTO, f"prompt lookup, then token recycling, as deep as it pays: {_NOTHING}", policy="goodput")


def _shipped_name(model: Any) -> str | None:
    """The name under which a live model is shipped, alone or as a part of a pipeline, if it is."""
    place = Path(getattr(model.config, "_name_or_path", "") or "").resolve()
    known = shipped.assets()
    return next((p.name for p in (place, place.parent) if p.name in known and known[p.name].resolve() == p), None)
