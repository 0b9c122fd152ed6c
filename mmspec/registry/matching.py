"""The methods that fit a target: set arithmetic on words, before anything is imported.

A rule's needs are met by the target or the drafter, a drafter's by the target or the rule, a method's own by any of the
three. A drafter that offers `tree` drafts trees, so its target has to verify them. `missing_words` is the whole of it;
the registry asks it of specs, and `mmspec.core.promise` of live objects.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from mmspec.registry.fields import EXACTNESS
from mmspec.registry.manager import Registry
from mmspec.registry.plugin import CORE
from mmspec.registry.specs import DrafterSpec, MethodSpec, RuleSpec, Spec, TargetSpec

HOME = "text"  # the plugin that brings the methods which any model can have
OURS = ("auto", "plain")
"""Methods that are words of mmspec: who names no method means them. A plugin that offers the name takes none away."""
DEFAULT_RULE = "match"
#: Without drafts and without a rule's name, the first of these that the target's units admit.
PLAIN_RULES = (DEFAULT_RULE, "rejection")
SAID = 3  # targets that an error describes; more are named only
_TREE = frozenset({"tree"})
_NO_DRAFT = frozenset({"chain"})
_NOTHING: frozenset[str] = frozenset()


class Part(Protocol):
    """A drafter or a rule: its spec, or the live object."""

    @property
    def needs(self) -> frozenset[str]:
        """Words that others have to offer."""

    @property
    def offers(self) -> frozenset[str]:
        """Words that it offers to others."""


def missing_words(
    target: Iterable[str], drafter: Part | None, rule: Part, own: frozenset[str] = _NOTHING
) -> frozenset[str]:
    """Words that are needed, `own` ones by the method itself, and that nobody offers, of the words that a target
    offers; empty where the three fit. Without a drafter nothing is drafted.
    """
    drafted = drafter.offers if drafter else _NO_DRAFT
    wanted = drafter.needs if drafter else _NOTHING
    left = (rule.needs - drafted) | (wanted - rule.offers) | (own - drafted - rule.offers) | (drafted & _TREE)
    return left - frozenset(target)


@dataclass(frozen=True, slots=True)
class Pairing:
    """A method with its parts looked up."""

    method: MethodSpec
    drafter: DrafterSpec | None  # its drafter, or None to decode without drafts
    rule: RuleSpec

    @property
    def needs(self) -> frozenset[str]:
        """Words that are left for the target to offer."""
        return self.missing(())

    @property
    def exactness(self) -> str:
        """The promise of the pair: no more than the method does, and no more than the rule does."""
        return max(self.method.exactness, self.rule.exactness, key=EXACTNESS.index)

    @property
    def wrt(self) -> str:
        """The distribution that the exactness is of, in words; "" for the target's own."""
        return self.drafter.wrt if self.drafter else ""

    def missing(self, offers: Iterable[str]) -> frozenset[str]:
        """Words that a target with these offers lacks; empty where the method fits it.

        Example:
            >>> pair(installed(), "plain").missing({"discrete"})
            frozenset()
        """
        return missing_words(offers, self.drafter, self.rule, self.method.needs)

    def says(self, missing: frozenset[str]) -> str:
        """The parts that need the missing words: `drafter 'suffix' needs discrete`."""
        wants: list[tuple[Spec, frozenset[str]]] = [(self.method, self.method.needs), (self.rule, self.rule.needs)]
        if self.drafter:
            wants.insert(1, (self.drafter, self.drafter.needs | self.drafter.offers & _TREE))
        whose = " and ".join(f"{part.kind} {part.name!r}" for part, words in wants if words & missing)
        return f"{whose} needs {', '.join(sorted(missing))}"


def pair(
    registry: Registry,
    method: str | MethodSpec,
    drafter: str | None = None,
    rule: str | None = None,
    offers: Iterable[str] | None = None,
    near: tuple[str, ...] = (),
) -> Pairing:
    """Look a method's parts up: its own plugin's components come first, then the core's, so that no other clashes.

    `drafter` and `rule` are taken instead of the method's. `offers` is what the target offers, where one is at hand:
    without drafts and without a name, the rule is the first of `PLAIN_RULES` that it admits, so that plain decoding
    fits every target. `near` names plugins whose method is meant where several share the name, for names that no user
    wrote.
    """
    found = method if isinstance(method, MethodSpec) else named(registry, method, near)
    home = (found.owner, CORE)
    drafts = registry.get("drafter", drafter) if drafter else None
    if drafts is None and found.drafter:
        drafts = registry.get("drafter", found.drafter, home)
    if rule:
        return Pairing(found, drafts, registry.get("rule", rule))
    default = DEFAULT_RULE if drafts or offers is None else _plain_rule(registry, frozenset(offers), home)
    return Pairing(found, drafts, registry.get("rule", found.rule or default, home))


def named(registry: Registry, method: str, near: tuple[str, ...] = ()) -> MethodSpec:
    """The method of that name; one of `OURS` is always the one that mmspec brings."""
    adapters = [adapter for adapter in registry.components("adapter") if method in (adapter.name, adapter.qualified)]
    if adapters and not any(method in (known.name, known.qualified) for known in registry.components("method")):
        raise ValueError(f"{method!r} is an adapter, which fits no model that mmspec decodes. {adapters[0].summary}")
    found: MethodSpec = registry.get("method", method, (*near, HOME) if method in OURS else near)
    return found


def _plain_rule(registry: Registry, offers: frozenset[str], near: tuple[str, ...]) -> str:
    """The rule that decodes a target without drafts."""
    there = {known.name for known in registry.components("rule")}
    rules = (registry.get("rule", name, near) for name in PLAIN_RULES if name in there)
    return next((rule.name for rule in rules if not missing_words(offers, None, rule)), DEFAULT_RULE)


def fitting(registry: Registry, offers: Iterable[str]) -> list[str]:
    """Names of the methods that fit a target with these offers, those whose parts are missing left out."""
    offered = frozenset(offers)
    names = set()
    for method in registry.components("method"):
        try:
            missing = pair(registry, method, offers=offered).missing(offered)
        except ValueError:
            continue
        if not missing:
            names.add(method.name)
    return sorted(names)


def require(registry: Registry, pairing: Pairing, target: TargetSpec) -> None:
    """Refuse a method that does not fit a target."""
    missing = pairing.missing(target.offers)
    if not missing:
        return
    fit = [other for other in registry.components("target") if not pairing.missing(other.offers)]
    others = [other for other in fit if not other.asks]
    few = len(others) <= SAID
    homes = ", ".join(f"{other.name} ({other.summary.rstrip('.')})" if few else other.name for other in others)
    asking = [other for other in fit if other.asks and target.offers <= other.offers]
    ways = "".join(f". Give {other.asked}, and the target is {other.name!r}: {other.summary}" for other in asking)
    method = pairing.method.name
    raise ValueError(
        f"method {method!r} does not fit target {target.name!r}: {pairing.says(missing)}, which the target does not "
        f"offer (it offers {', '.join(sorted(target.offers)) or 'nothing'}). Methods that fit: "
        f"{', '.join(fitting(registry, target.offers)) or 'none'}. "
        f"{method!r} is for {homes or 'no target that is installed'}{ways}"
    )
