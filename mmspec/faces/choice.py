"""`auto`: a method, perhaps a draft model and a policy, and the reason, for users who do not want to choose.

In this order: a draft model that was given; what the model's card says was measured to be best; else a lookup with
token recycling behind it, as deep as it pays. Under `match` a choice can cost time, never change the output.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec import shipped
from mmspec.report.cards import block

AUTO = "auto"


@dataclass(frozen=True)
class Choice:
    """What `auto` chose.

    Attributes:
        method: A method's name.
        why: In a sentence.
        drafter: Name of a draft model, where the choice needs one.
        policy: Name of a policy; None is the method's own.
    """

    method: str
    why: str
    drafter: str | None = None
    policy: str | None = None


def choose(model: Any, draft_model: bool, rule: bool) -> Choice:
    """Choose for a live model.

    Args:
        model: It.
        draft_model: Whether the user gave a smaller model.
        rule: Whether the user chose a rule, which may take chains only.
    """
    if draft_model:
        return Choice("draft-model", "draft-model, because a draft model was given")
    if rule:
        return Choice("prompt-lookup", "prompt-lookup, because every rule takes its chains of copies")
    name = _shipped_name(model)
    card = block(name) if name else {}
    method = card.get("default_method", AUTO)
    if method != AUTO:
        drafter = card.get("drafter")
        using = f" with {drafter}" if drafter else ""
        return Choice(method, f"{method}{using}, because the card of mmspec/{name} names it", drafter)
    return Choice(
        AUTO, "prompt lookup, then token recycling, as deep as it pays: no draft model and no card", policy="goodput"
    )


def _shipped_name(model: Any) -> str | None:
    """The name under which a live model is shipped, if it is."""
    place = Path(getattr(model.config, "_name_or_path", "") or "").resolve()
    return place.name if shipped.assets().get(place.name, Path()).resolve() == place else None
