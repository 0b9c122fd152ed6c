"""The refusal of a target, a drafter and a rule that cannot be verified together."""

from mmspec.core.capabilities import Advising
from mmspec.core.protocols import Drafter, Target
from mmspec.core.rules.rule import Rule
from mmspec.registry import fitting, installed, missing_words


def refuse_misfits(target: Target, drafter: Drafter, rule: Rule) -> None:
    """Refuse three live objects before anything runs: drafts are verified exactly or not at all."""
    missing = missing_words(target.offers, drafter, rule)
    if missing:
        raise ValueError(
            f"{type(drafter).__name__} with {type(rule).__name__} on {type(target).__name__} cannot be verified: "
            f"nothing offers {_listed(missing)} "
            f"(target: {_listed(target.offers)}; drafter: {_listed(drafter.offers)}; rule: {_listed(rule.offers)})"
            f"{drafter.advice if isinstance(drafter, Advising) else ''}. "
            f"Methods that fit the target: {', '.join(fitting(installed(), target.offers)) or 'none'}"
        )


def _listed(words: frozenset[str]) -> str:
    return ", ".join(sorted(words)) or "nothing"
