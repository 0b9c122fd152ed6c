"""A component on trial: how it is made, and where it is tried."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from mmspec.core.decoder import Decoder
from mmspec.core.protocols import Drafter
from mmspec.core.rules import Match, RecursiveRejection, Rejection, Rule
from mmspec.registry import DrafterSpec, Pairing, Registry, RuleSpec, pair
from mmspec.registry.options import build
from mmspec.testing.conformance.benches import Bench, bench_of, toys
from mmspec.testing.conformance.check import Untried
from mmspec.testing.conformance.example import Example, examples_of

THOROUGH = 400_000
"""Rows of a thorough statistical trial."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One way to try a drafter, a rule or a method.

    Attributes:
        subject: Who is tried.
        bench: Where.
        example: How.
    """

    subject: "Subject"
    bench: Bench
    example: Example

    def drafter(self) -> Drafter | None:
        """A new drafter."""
        return self.subject.drafter(self.example)

    def rule(self, fresh: bool = False) -> Rule:
        """A rule for the drafter: `match` where that is possible, or one whose noise is fresh.

        Raises:
            Untried: No rule with fresh noise takes the drafter.
        """
        drafter = self.drafter()
        assert drafter is not None
        rules: list[Rule] = [Match()] if self.bench.discrete and not fresh else []
        for rule in [*rules, Rejection(), RecursiveRejection()]:
            try:
                Decoder(self.bench.target, drafter, rule)
            except ValueError:
                continue
            return rule
        raise Untried("no rule that draws fresh noise takes it")

    @property
    def matched(self) -> bool:
        """Whether it is tried under `match`."""
        return isinstance(self.rule(), Match)

    @property
    def name(self) -> str:
        """Where it is tried."""
        return self.bench.name

    @property
    def batches(self) -> list[list[int]]:
        """Rows of the batches to decode."""
        most = self.example.rows
        return [list(range(8))] if most is None or most >= 8 else [[row] for row in range(3)]


class Subject:
    """A component on trial.

    Args:
        component: The component's spec.
        registry: Where it comes from.
        thorough: Statistics on `THOROUGH` rows, in minutes: a bias of 2 % shows.
    """

    def __init__(self, component: Any, registry: Registry, thorough: bool = False) -> None:
        self.component, self.registry, self.thorough = component, registry, thorough
        self.kept: dict[Any, Any] = {}
        self.crashes: list[str] = []  # what was raised where a ValueError would have been a refusal

    @cached_property
    def examples(self) -> list[Example]:
        """What it is tried on, as its author says; else one example of all defaults."""
        return examples_of(self.component) or [Example()]

    def rows(self, bench: Bench) -> int:
        """Rows of a statistical trial."""
        return max(bench.rows, THOROUGH) if self.thorough else bench.rows

    def made(self, example: Example, changed: Mapping[str, Any] | None = None) -> Any:
        """A new instance, with the example's options, or with some of them changed."""
        options = example.options
        declared = self.component.load_options()
        if changed:
            assert declared is not None
            values = {} if options is None else {f.name: getattr(options, f.name) for f in fields(options)}
            options = build(declared, {**values, **changed}, self.component.qualified)
        elif options is None and declared is not None:
            options = build(declared, {}, self.component.qualified)
        factory = self.component.load()
        return factory() if options is None else factory(options)

    def drafter(self, example: Example) -> Drafter | None:
        """A new drafter: itself, or a method's."""
        if self.component.kind == "drafter":
            drafter: Drafter = self.made(example)
            return drafter
        if self.pairing.drafter is None:
            return None
        part = Subject(self.pairing.drafter, self.registry)
        own = {name: value for name, value in self.component.defaults.items() if name in _names(part.component)}
        drafter = part.made(example, own)
        return drafter

    def rule(self, example: Example) -> Rule:
        """A new rule: itself, or a method's."""
        if self.component.kind == "rule":
            rule: Rule = self.made(example)
            return rule
        part = Subject(self.pairing.rule, self.registry)
        own = {name: value for name, value in self.component.defaults.items() if name in _names(part.component)}
        rule = part.made(part.examples[0], own)
        return rule

    @cached_property
    def own_benches(self) -> list[Bench]:
        """The targets of its own examples."""
        return [bench_of(self.component.name, example) for example in self.examples if example.target is not None]

    @cached_property
    def pairing(self) -> Pairing:
        """A method's parts."""
        return pair(self.registry, self.component)

    @cached_property
    def trials(self) -> list[Trial]:
        """Where a drafter or a method is tried.

        Raises:
            Untried: Nowhere; says what to add.
        """
        examples = self.examples
        if self.component.kind == "method":
            drafter = self.pairing.drafter
            examples = Subject(drafter, self.registry).examples[:1] if drafter else [Example()]
        trials, refusals = [], []
        for example in examples:
            found, refused = self._tried(example)
            trials += found
            refusals += refused
        if not trials:
            raise Untried(
                f"nothing to try it on: {'; '.join(dict.fromkeys(refusals))}. Give its factory an `example` "
                "(mmspec.testing.Example says how)"
            )
        return trials

    def _tried(self, example: Example) -> tuple[list[Trial], list[str]]:
        """Trials of one example, and why other places do not do. A target's example serves where no toy does.

        Methods are tried on both: users call them on live models.
        """
        if example.target is not None:
            return self._fitting([bench_of(self.component.name, example)], example)
        found, refused = self._fitting(toys(), example)
        if found and self.component.kind != "method":
            return found, refused
        others, more = self._fitting(targets(self.registry), example)
        return found + others, refused + more

    def _fitting(self, benches: "list[Bench] | Iterator[Bench]", example: Example) -> tuple[list[Trial], list[str]]:
        found, refused = [], []
        for bench in benches:
            trial = Trial(self, bench, example)
            try:
                self._meet(trial)
            except ValueError as error:
                refused.append(f"{bench.name}: {error}")
                continue
            except Exception as error:  # anything else is a fault, which `can-be-made` tells
                refused.append(f"{bench.name}: {type(error).__name__}: {error}")
                self.crashes.append(refused[-1])
                continue
            found.append(trial)
        return found, refused

    def _meet(self, trial: Trial) -> None:
        """Refuses as the decoder does."""
        bench = trial.bench
        if self.component.kind == "method":
            missing = self.pairing.missing(bench.target.offers)
            if missing:
                raise ValueError(f"it does not offer {', '.join(sorted(missing))}")
            Decoder(bench.target, trial.drafter(), self.rule(trial.example))
            return
        drafter = trial.drafter()
        assert drafter is not None
        refusals = []
        for rule in (Match(), Rejection(), RecursiveRejection()):
            if "discrete" in rule.needs and not bench.discrete:
                continue
            try:
                Decoder(bench.target, drafter, rule)
                return
            except ValueError as error:
                refusals.append(str(error))
        raise ValueError(refusals[0])


def targets(registry: Registry) -> Iterator[Bench]:
    """The examples of installed targets."""
    for component in registry.components("target"):
        for example in examples_of(component):
            if example.target is not None:
                yield bench_of(component.name, example)


def _names(component: DrafterSpec | RuleSpec) -> set[str]:
    options = component.load_options()
    return set() if options is None else {f.name for f in fields(options)}
