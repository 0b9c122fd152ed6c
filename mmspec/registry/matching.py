"""Which method fits which target: set arithmetic on manifests, before anything is imported.

A rule's needs are met by the target or the drafter, a drafter's by the target or the rule, a method's own by any of the
three. A drafter that offers `tree` makes trees, so its target has to verify them. A target that offers `own-loop` keeps
its own loop and verifies nothing in ours: it is for methods that need that word.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mmspec.registry.component import DEFAULT_RULE, EXACTNESS, PLAIN_RULES, Component
from mmspec.registry.manager import Registry
from mmspec.registry.plugin import CORE

HOME = "text"
"""The plugin that brings the methods which any model can have."""
OURS = ("auto", "plain")
"""Methods that are words of mmspec: who names no method means them. A plugin that offers the name takes none away."""
OWN_LOOP = "own-loop"
SAID = 3
"""Targets that an error describes; more are named only."""
NO_DRAFT = frozenset({"chain"})
"""What no draft offers: it is the shortest chain."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """A method with its parts looked up.

    Attributes:
        method: The method.
        drafter: Its drafter, or None to decode without drafts.
        rule: Its rule.
    """

    method: Component
    drafter: Component | None
    rule: Component

    @property
    def offers(self) -> frozenset[str]:
        """Words that the drafter offers."""
        return self.drafter.offers if self.drafter else NO_DRAFT

    @property
    def needs(self) -> frozenset[str]:
        """Words that are left for the target to offer."""
        drafter = self.drafter.needs if self.drafter else frozenset()
        own = self.method.needs - self.offers - self.rule.offers
        return own | (self.rule.needs - self.offers) | (drafter - self.rule.offers) | (self.offers & {"tree"})

    @property
    def exactness(self) -> str:
        """What the pair promises: no more than the method does, and no more than the rule does."""
        return max(str(self.method.exactness), str(self.rule.exactness), key=EXACTNESS.index)


def pair(
    registry: Registry,
    method: str | Component,
    drafter: str | None = None,
    rule: str | None = None,
    offers: Iterable[str] | None = None,
    near: tuple[str, ...] = (),
) -> Pairing:
    """Look a method's parts up: its own plugin's components come first, then the core's, so that no other clashes.

    Args:
        registry: Where to look.
        method: The method, or its name.
        drafter: A drafter to use instead of the method's.
        rule: A rule to use instead of the method's.
        offers: What the target offers, where one is at hand: without drafts and without a name, the rule is the first
            of `PLAIN_RULES` that it admits, so that plain decoding fits every target.
        near: Plugins whose method is meant where several share the name; for names that no user wrote.

    Raises:
        ValueError: If a name is unknown or ambiguous.
    """
    found = method if isinstance(method, Component) else named(registry, method, near)
    home = (found.owner, CORE)
    drafts = registry.get("drafter", drafter) if drafter else None
    if drafts is None and found.drafter:
        drafts = registry.get("drafter", found.drafter, home)
    if rule:
        return Pairing(found, drafts, registry.get("rule", rule))
    default = DEFAULT_RULE if drafts or offers is None else _plain_rule(registry, frozenset(offers), home)
    return Pairing(found, drafts, registry.get("rule", found.rule or default, home))


def named(registry: Registry, method: str, near: tuple[str, ...] = ()) -> Component:
    """The method of that name; one of `OURS` is always the one that mmspec brings.

    Raises:
        ValueError: If there is none, or several and no plugin of `near` has one.
    """
    return registry.get("method", method, (*near, HOME) if method in OURS else near)


def _plain_rule(registry: Registry, offers: frozenset[str], near: tuple[str, ...]) -> str:
    """The rule that decodes a target without drafts."""
    there = {known.name for known in registry.components("rule")}
    rules = (registry.get("rule", name, near) for name in PLAIN_RULES if name in there)
    return next((rule.name for rule in rules if rule.needs <= offers | NO_DRAFT), DEFAULT_RULE)


def fits(pairing: Pairing, target_offers: Iterable[str]) -> frozenset[str]:
    """Words that are needed and that nobody offers; empty when the method fits.

    Example:
        >>> fits(pair(installed(), "plain"), {"discrete"})
        frozenset()
    """
    offers = frozenset(target_offers)
    return pairing.needs - offers | ({"verify"} if OWN_LOOP in offers - pairing.needs else frozenset())


def fitting(registry: Registry, target_offers: Iterable[str]) -> list[str]:
    """Names of the methods that fit a target, those whose parts are missing left out."""
    offers = frozenset(target_offers)
    names = set()
    for method in registry.components("method"):
        try:
            missing = fits(pair(registry, method, offers=offers), offers)
        except ValueError:
            continue
        if not missing:
            names.add(method.name)
    return sorted(names)


def require(registry: Registry, pairing: Pairing, target: Component) -> None:
    """Refuse a method that does not fit a target.

    Raises:
        ValueError: Names the missing words, who needs them, the methods that do fit, and what the method is for.
    """
    missing = fits(pairing, target.offers)
    if not missing:
        return
    parts = [
        p for p in (pairing.method, pairing.drafter, pairing.rule) if p and (p.needs | p.offers & {"tree"}) & missing
    ]
    whose = " and ".join(f"{p.kind} {p.name!r}" for p in parts or [pairing.method])
    others = [other for other in registry.components("target") if not fits(pairing, other.offers)]
    few = len(others) <= SAID
    homes = ", ".join(f"{other.name} ({other.summary.rstrip('.')})" if few else other.name for other in others)
    raise ValueError(
        f"method {pairing.method.name!r} does not fit target {target.name!r}: {whose} needs "
        f"{', '.join(sorted(missing))}, which the target does not offer (it offers "
        f"{', '.join(sorted(target.offers)) or 'nothing'}). Methods that fit: "
        f"{', '.join(fitting(registry, target.offers)) or 'none'}. "
        f"{pairing.method.name!r} is for {homes or 'no target that is installed'}"
    )
