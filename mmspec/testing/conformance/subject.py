"""A component under test: how instances are made, and on which benches it is tried."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, TypeVar

from mmspec.core.decoder import Decoder
from mmspec.core.protocols import Drafter
from mmspec.core.rules import Match, RecursiveRejection, Rejection, Rule
from mmspec.registry import Pairing, Registry, pair
from mmspec.registry.options import build
from mmspec.registry.plugin import CORE
from mmspec.testing.conformance.benches import Bench, bench_of, conditioned, toys
from mmspec.testing.conformance.example import Example, Maker, examples_of
from mmspec.testing.conformance.promise import Untried, said

T = TypeVar("T")
THOROUGH = 400_000
"""Rows of a thorough statistical trial."""
MOST = 4
"""Most units that a policy may ask for, and that every draft has."""
OURS = "mmspec"
UNSHIPPED = "what it is tried on comes with the tests of mmspec's repository: pytest tests/conformance"


@dataclass(frozen=True, eq=False)
class Trial:
    """A drafter on a bench: one way to try a drafter, a method or a rule."""

    subject: "Subject"
    bench: Bench
    drafter: Callable[[], Any]  # makes a new drafter; None for a method without drafts
    shape: str  # the drafter's name; names of the kit's drafters begin with the shape of their drafts
    rows: int  # rows of a statistical trial
    example: Example = field(default_factory=Example)

    def __str__(self) -> str:
        return f"{self.shape} on {self.bench.name}"

    def rule(self, fresh: bool = False) -> Rule:
        """A new rule for the drafter: `match` where it can be; if `fresh`, one with fresh noise in every round."""
        drafter = self.drafter()
        assert drafter is not None
        try:
            return _rule_for(self.bench, drafter, self.subject.own_rules, fresh)
        except ValueError:
            raise Untried("no rule that draws fresh noise takes it") from None

    @property
    def matched(self) -> bool:
        """True if it is tried under `match`."""
        return isinstance(self.rule(), Match)

    @property
    def name(self) -> str:
        return self.bench.name

    @property
    def batches(self) -> list[list[int]]:
        """The batches to decode, as numbers of rows."""
        most = self.example.rows
        return [list(range(8))] if most is None or most >= 8 else [[row] for row in range(3)]


class Subject:
    """A component of a registry under test.

    If `thorough`, statistics use `THOROUGH` rows, which takes minutes and shows a bias of 2 %. `given` are examples by
    qualified name; without, there are only those that factories name.
    """

    def __init__(
        self,
        component: Any,
        registry: Registry,
        thorough: bool = False,
        given: Mapping[str, Maker] | None = None,
    ) -> None:
        self.component, self.registry, self.thorough, self.given = component, registry, thorough, given
        self.cache: dict[Any, Any] = {}
        self.crashes: list[str] = []
        self.failed: dict[str, str] = {}  # the first check that failed for each reason

    @cached_property
    def examples(self) -> list[Example]:
        """The author's examples; one example of all defaults if there are none."""
        if self.given is None and self.component.owner in _ours(self.registry):
            raise Untried(UNSHIPPED)
        return examples_of(self.component, self.given or {}) or [Example()]

    def beside(self, component: Any) -> "Subject":
        """Another component, tried with the same examples: with defaults if a stranger's method has a part of ours."""
        given = self.given if component.owner == self.component.owner else self.given or {}
        return Subject(component, self.registry, given=given)

    def rows(self, bench: Bench) -> int:
        """Rows of a statistical trial."""
        return max(bench.rows, THOROUGH) if self.thorough else bench.rows

    def instance(self, example: Example, changed: Mapping[str, Any] | None = None) -> Any:
        """A new instance with the example's options, some of them changed."""
        options = example.options
        declared = self.component.load_options()
        if declared is not None and (changed or options is None):
            values = {} if options is None else {f.name: getattr(options, f.name) for f in fields(options)}
            options = build(declared, {**values, **(changed or {})}, self.component.qualified)
        factory = self.component.load()
        if self.component.kind == "policy":
            factory = partial(factory, MOST)
        return factory() if options is None else factory(options)

    def drafter(self, example: Example) -> Drafter | None:
        """A new drafter: the component itself, or the method's; None for a method without drafts."""
        if self.component.kind == "drafter":
            return self.instance(example)
        return None if self.pairing.drafter is None else self._part(self.pairing.drafter, example)

    def rule(self, example: Example | None = None) -> Rule:
        """A new rule: the component itself, with the options of its first example or of `example`; or the method's."""
        if self.component.kind == "rule":
            return self.instance(example or self.examples[0])
        return self._part(self.pairing.rule)

    def _part(self, component: Any, example: Example | None = None) -> Any:
        """A method's drafter or rule, with the option values that the method sets."""
        part, options = self.beside(component), component.load_options()
        names = set() if options is None else {f.name for f in fields(options)}
        own = {name: value for name, value in self.component.defaults.items() if name in names}
        return part.instance(example or part.examples[0], own)

    @cached_property
    def own_benches(self) -> list[Bench]:
        """Benches of the component's own examples."""
        return [bench_of(self.component.name, example) for example in self.examples if example.target is not None]

    @cached_property
    def own_rules(self) -> list[Rule]:
        """The lossless rules of the component's plugin, for drafters that no such rule of the core takes."""
        specs = [spec for spec in self.registry.components("rule") if spec.owner == self.component.owner]
        return [spec.load()() for spec in specs if spec.exactness == "lossless"]

    @cached_property
    def pairing(self) -> Pairing:
        """A method's parts."""
        return pair(self.registry, self.component)

    @cached_property
    def trials(self) -> list[Trial]:
        """All ways to try a drafter or a method."""
        if self.component.kind == "method":
            drafter = self.pairing.drafter
            examples = self.beside(drafter).examples[:1] if drafter else [Example()]
        else:
            examples = self.examples
        trials, refusals = [], []
        for example in examples:
            found, refused = self._trials_of(example)
            trials += found
            refusals += refused
        if not trials and self.crashes and self.component.kind == "drafter":
            raise Untried("it cannot be tried, as can-be-made says")
        if not trials:
            raise Untried(
                f"nothing to try it on: {'; '.join(dict.fromkeys(refusals))}. Give its factory an `example` "
                "(mmspec.testing.Example says how)"
            )
        return trials

    def _trials_of(self, example: Example) -> tuple[list[Trial], list[str]]:
        """Trials of one example, and the refusals of other benches.

        Examples of installed targets serve if no toy fits; for methods, which users call on live models, always.
        """
        if example.target is not None:
            return self._fitting([bench_of(self.component.name, example)], example)
        found, refused = self._fitting(toys(), example)
        if found and self.component.kind != "method":
            return found, refused
        others, more = self._fitting(targets(self.registry, self.given), example)
        return found + others, refused + more

    def _fitting(self, benches: Iterable[Bench], example: Example) -> tuple[list[Trial], list[str]]:
        found, refused, make = [], [], partial(self.drafter, example)
        for bench in benches:
            trial = Trial(self, bench, make, self.component.name, self.rows(bench), example)
            try:
                self._pair(trial)
            except ValueError as error:
                refused.append(f"{bench.name}: {error}")
                continue
            except Exception as error:  # a fault, which the check `can-be-made` reports
                refused.append(f"{bench.name}: {said(error)}")
                self.crashes.append(refused[-1])
                continue
            found.append(replace(trial, bench=conditioned(bench, trial.drafter())))
        return found, refused

    def _pair(self, trial: Trial) -> None:
        """Refuse what the decoder would refuse."""
        if self.component.kind == "method":
            missing = self.pairing.missing(trial.bench.target.offers)
            if missing:
                raise ValueError(f"it does not offer {', '.join(sorted(missing))}")
            Decoder(trial.bench.target, trial.drafter(), self.rule())
        else:
            drafter = trial.drafter()
            assert drafter is not None
            _rule_for(trial.bench, drafter, self.own_rules)


def remembered(measure: Callable[[Subject], T]) -> Callable[[Subject], T]:
    """Measure something of a subject once, so that all checks look at the same."""

    def look(subject: Subject) -> T:
        if measure not in subject.cache:
            subject.cache[measure] = measure(subject)
        return subject.cache[measure]

    return look


def targets(registry: Registry, given: Mapping[str, Maker] | None = None) -> Iterator[Bench]:
    """Benches of the examples of all targets."""
    for component in registry.components("target"):
        for example in examples_of(component, given or {}):
            if example.target is not None:
                yield bench_of(component.name, example)


def _rule_for(bench: Bench, drafter: Drafter, own: Iterable[Rule], fresh: bool = False) -> Rule:
    """The first rule that takes a drafter: of the core's, then of its plugin's `own`."""
    refusals = []
    rules: list[Rule] = [Match(), Rejection(), RecursiveRejection(), *own]
    for rule in rules:
        if (isinstance(rule, Match) and fresh) or ("discrete" in rule.needs and not bench.discrete):
            continue
        try:
            Decoder(bench.target, drafter, rule)
            return rule
        except ValueError as error:
            refusals.append(error)
    raise refusals[0]


def _ours(registry: Registry) -> set[str]:
    """The plugins of our distribution, whose examples are not shipped; the core needs none beside the kit's."""
    return {plugin.name for plugin in registry.plugins() if plugin.distribution == OURS} - {CORE}
