"""Which target, drafter and rule can be verified exactly together, and what a seed says of them.

Every need must be met by another party.
"""

from mmspec.core.capabilities import Advising
from mmspec.core.policies import Clocked, Policy
from mmspec.core.protocols import Drafter, Target
from mmspec.core.rules.rule import Rule


def refuse_misfits(target: Target, drafter: Drafter, rule: Rule) -> None:
    """Refuse a trio before anything runs: drafts are verified exactly or not at all.

    Raises:
        ValueError: Names the words that nobody offers.
    """
    lacking = (rule.needs - target.offers - drafter.offers) | (drafter.needs - target.offers - rule.offers)
    if "tree" in drafter.offers and "tree" not in target.offers:
        lacking |= {"tree"}
    if lacking:
        raise ValueError(
            f"{type(drafter).__name__} with {type(rule).__name__} on {type(target).__name__} cannot be verified: "
            f"nothing offers {', '.join(sorted(lacking))} "
            f"(target: {_listed(target.offers)}; drafter: {_listed(drafter.offers)}; rule: {_listed(rule.offers)})"
            + (drafter.advice if isinstance(drafter, Advising) else "")
        )


def repeatable(rule: Rule, policy: Policy) -> bool:
    """Whether a seed says all: where drafts change what is drawn, their lengths must not follow the clock."""
    return rule.exactness == "invariant" or not isinstance(policy, Clocked)


def _listed(words: frozenset[str]) -> str:
    return ", ".join(sorted(words)) or "nothing"
