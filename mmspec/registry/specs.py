"""Specs: the lines of a plugin's manifest, one dataclass a kind. Writing one imports nothing; using it does.

A spec is where a component's facts are stated. A class that the loop asks for them reads them here:
`offers, needs = SUFFIX.offers, SUFFIX.needs`.
"""

import inspect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal, Self, cast

from mmspec.registry.fields import check, imported
from mmspec.registry.printable import refuse_control

Exactness = Literal["invariant", "lossless", "lossy", "synthetic"]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """The fields of every component.

    Attributes:
        kind: `target`, `drafter`, `rule`, `policy`, `method` or `adapter`.
        name: Lower-case words joined by `-`, `.` or `_`; the name in the literature where there is one.
        summary: What the component is, in at most 80 characters.
        paper: A link to the publication.
        owner: The plugin that offers the component; filled in by the registry.

    Raises:
        ValueError: A field of this or of the specs below holds what it must not; says what is allowed.
    """

    kind: ClassVar[str]
    name: str
    summary: str
    paper: str = ""
    owner: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check(self, f"{self.kind} {self.name!r}")

    @property
    def qualified(self) -> str:
        """The name that no other plugin can take: `plugin:name`."""
        return f"{self.owner}:{self.name}" if self.owner else self.name


@dataclass(frozen=True, kw_only=True)
class FactorySpec(Spec):
    """A component that is made by a class or function.

    Attributes:
        factory: `"module:Attribute"`, imported on first use.
    """

    factory: str

    def load(self) -> Any:
        """Import the factory.

        Raises:
            ImportError: The factory cannot be imported; names the component.
        """
        return imported(self.factory, f"{self.kind} {self.qualified!r}")


@dataclass(frozen=True, kw_only=True)
class DefaultMethod:
    """A method that `auto` may choose for a target's models.

    Attributes:
        method: The method's name, looked up in the target's plugin first.
        k: Units to draft per round; None is the general default.
        policy: A speculation-length policy's name; None is the method's own.
        defaults: Option values that differ from the method's own defaults.
        when: When it is chosen: `model`, if the user gave a draft model; `rule`, if the user chose a rule; `pipeline`,
            if the target's pipeline runs the model, whatever the rule; `cpu`, `cuda`, …, if the model is on such a
            device; "" always. A model's card comes after the first two.
        why: The reason, as a sentence for `spec.why`; "" says that the target is used with this method.
    """

    method: str
    k: int | None = None
    policy: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)
    when: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        check(self, f"default method {self.method!r}")


@dataclass(frozen=True, kw_only=True)
class TargetSpec(FactorySpec):
    """A target: a model, or a family of models, whose distribution the output follows.

    Attributes:
        offers: Words that methods may need of it (`mmspec.registry.plugin.WORDS`).
        words: Words of `offers` that mmspec does not declare, each with a sentence; the whole plugin may use them.
        pipeline: `"module:Class"` of the pipeline for its models, or "" where there is none.
        architectures: Classes of stored models (`architectures` in `config.json`) that `pipeline` loads from their own
            folders, so that it is chosen before weights are read, or that are refused where there is none; other models
            are loaded as language models, and `mmspec_target_for` is asked.
        default_methods: What `auto` chooses among: the first one that applies.
        asks: Live objects that users give beside the model, each with a sentence: `{"vq": "…"}` is the argument `vq=`
            of `mmspec.enable`, of `Pipeline.use`, and of the factory. Who gives them means this target.

    Example:
        >>> TargetSpec(name="table", factory="my_target:Table", offers={"discrete", "tree"}, summary="A table.")
    """

    kind: ClassVar[str] = "target"
    offers: frozenset[str] = frozenset()
    words: Mapping[str, str] = field(default_factory=dict, hash=False)
    pipeline: str = ""
    architectures: frozenset[str] = frozenset()
    default_methods: tuple[DefaultMethod, ...] = ()
    asks: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check(self, f"{self.kind} {self.name!r}")
        if not all(isinstance(default, DefaultMethod) for default in self.default_methods):
            raise ValueError(f"{self.kind} {self.name!r}: default_methods holds DefaultMethod(...) only")

    @property
    def asked(self) -> str:
        """The arguments of `asks` with their sentences; "" where there are none."""
        return " and ".join(f"{name}= ({sentence})" for name, sentence in self.asks.items())

    def load_pipeline(self) -> Any:
        """Import the pipeline class.

        Raises:
            ValueError: There is none; says what to use instead.
            ImportError: The class cannot be imported; names the component.
        """
        if not self.pipeline:
            raise ValueError(f"the {self.kind} {self.qualified!r} has no pipeline; use mmspec.enable on the model")
        return imported(self.pipeline, f"the pipeline of {self.kind} {self.qualified!r}")


@dataclass(frozen=True, kw_only=True)
class OptionsSpec(FactorySpec):
    """A component that may have options.

    Attributes:
        options: `"module:Class"` of a frozen dataclass, imported on first use; None where an argument of the factory is
            annotated with that class, or there is nothing to set.
    """

    options: str | None = None

    def load_options(self) -> type | None:
        """Import the options dataclass, or return None where there is nothing to set.

        Raises:
            ImportError: The dataclass, or the factory, cannot be imported; names the component.
            ValueError: It is no dataclass, or the help of a field holds control characters.
        """
        whose = f"the options of {self.kind} {self.qualified!r}"
        options: Any = _annotated(self.load()) if self.options is None else imported(self.options, whose)
        if options is None:
            return None
        if not (isinstance(options, type) and is_dataclass(options)):
            raise ValueError(f"{whose} are a dataclass, and {self.options} is none")
        for option in fields(options):
            refuse_control(str(option.metadata.get("help", "")), f"the help of {option.name!r} among {whose}")
        return options


def _annotated(factory: Any) -> type | None:
    """The dataclass that an argument of a factory is annotated with, the first one; None where there is none."""
    try:
        arguments = inspect.signature(factory, eval_str=True).parameters.values()
    except (TypeError, ValueError, NameError):  # it cannot be asked; to call it says what is wrong
        return None
    hints = [each.annotation for each in arguments if isinstance(each.annotation, type)]
    return next(filter(is_dataclass, hints), None)


@dataclass(frozen=True, kw_only=True)
class PolicySpec(OptionsSpec):
    """A policy: it decides how many units to draft (`mmspec.core.policies.Policy`).

    Its factory is called as `factory(k)`, or as `factory(k, options)` where it has options; `k` is the most units of a
    draft.

    Example:
        >>> PolicySpec(name="half", factory="my_policy:Half", summary="Half of k, always.")
    """

    kind: ClassVar[str] = "policy"


@dataclass(frozen=True, kw_only=True)
class PartSpec(OptionsSpec):
    """The common part of drafters and rules: they need words of others, and offer words to others.

    Attributes:
        needs: Words that others have to offer (`mmspec.registry.plugin.WORDS`): the target, and beside it the rule for
            a drafter, the drafter for a rule.
        offers: Words that this component offers to the others.
        words: Words of `needs` and `offers` that mmspec does not declare, each with a sentence; the whole plugin may
            use them.
    """

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()
    words: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def row(cls, name: str, factory: str, words: str, summary: str, paper: str = "", /, **others: Any) -> Self:
        """The same as one row: words are what is needed, an arrow, and what is offered.

        Example:
            >>> DrafterSpec.row("repeat", "my_drafter:Repeat", "discrete → chain", "Repeats a token.")
        """
        needs, _, offers = (frozenset(part.split()) for part in words.partition("→"))
        said: dict[str, Any] = {"name": name, "factory": factory, "summary": summary, "paper": paper}
        return cls(needs=needs, offers=offers, **said, **others)


@dataclass(frozen=True, kw_only=True)
class DrafterSpec(PartSpec):
    """A drafter: it proposes units cheaply.

    Attributes:
        reads: `"module:function"` of a stored model's config and the names of its tensors: whether it is a head that
            this drafter drafts with, so that `auto` chooses its method; "" where it drafts with no head.
        wrt: The distribution that the output follows, in words, where the drafter puts another target in the model's
            place (`mmspec.core.capabilities.Conditioning`); "" for the model's own.

    Example:
        >>> DrafterSpec(name="repeat", factory="my_drafter:Repeat", offers={"chain"}, summary="Repeats a token.")
    """

    kind: ClassVar[str] = "drafter"
    reads: str = ""
    wrt: str = ""

    def is_for(self, config: Mapping[str, Any], keys: Collection[str]) -> bool:
        """True if a stored model is a head that this drafter drafts with.

        Args:
            config: The entries of its `config.json`; none where it has no such file.
            keys: The names of its tensors.

        Raises:
            ImportError: `reads` cannot be imported; names the component.
        """
        return bool(self.reads) and bool(imported(self.reads, f"what {self.qualified!r} reads")(config, keys))

    def method(
        self,
        summary: str,
        *,
        name: str = "",
        rule: str | None = None,
        needs: Iterable[str] = (),
        exactness: Exactness = "invariant",
        defaults: Mapping[str, Any] | None = None,
        k: int | None = None,
        on_accelerator: Mapping[str, Any] | None = None,
        paper: str = "",
    ) -> "MethodSpec":
        """Derive a method that drafts with this drafter, by default under its name, with its paper and rule `match`.

        Args:
            summary: As in `MethodSpec`, like everything below.
            name: "" is the drafter's.
            rule: None is `match`.
            needs: Words that are needed beside those of drafter and rule.
            exactness: What the method promises; `invariant` is the promise of `match`.
            defaults: Option values that differ from the drafter's or the rule's own.
            k: Units to draft per round.
            on_accelerator: Values that differ where the target is not on a CPU.
            paper: "" is the drafter's.

        Raises:
            ValueError: A field holds what it must not; says what is allowed.

        Example:
            >>> REPEAT.method("Drafts repetitions.")  # REPEAT = DrafterSpec(name="repeat", ...)
        """
        return MethodSpec(
            name=name or self.name,
            drafter=self.name,
            rule=rule,
            needs=cast(frozenset[str], needs),  # checked and frozen there
            exactness=exactness,
            defaults=defaults or {},
            k=k,
            on_accelerator=on_accelerator or {},
            summary=summary,
            paper=paper or self.paper,
        )


@dataclass(frozen=True, kw_only=True)
class RuleSpec(PartSpec):
    """A rule: it decides which drafted units are accepted.

    Attributes:
        exactness: What the rule promises: `invariant` (the plain output for that seed), `lossless` (the plain
            distribution), `lossy`, `synthetic` (benchmarks only).
    """

    kind: ClassVar[str] = "rule"
    exactness: Exactness


@dataclass(frozen=True, kw_only=True)
class MethodSpec(Spec):
    """A method: a drafter, a rule and option values under the name that users ask for.

    Attributes:
        exactness: What the method promises, as of a rule, and no more than its rule does.
        drafter: The drafter's name, or None to decode without drafts.
        rule: The rule's name, or None for the default, `match`; without drafts, for whatever the target admits.
        needs: Words that target, drafter or rule have to offer beside what drafter and rule need themselves.
        defaults: Option values that differ from the drafter's or the rule's own defaults.
        k: Units to draft per round, where neither the user nor a model's card says, nor a head that was trained for
            some number; None is the general default.
        on_accelerator: Values of options, and of `k`, that take the place of these where the target is not on a CPU:
            there more nodes cost less.

    Example:
        >>> MethodSpec(name="repeat", drafter="repeat", exactness="invariant", summary="Drafts repetitions.")
    """

    kind: ClassVar[str] = "method"
    exactness: Exactness
    drafter: str | None = None
    rule: str | None = None
    needs: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)
    k: int | None = None
    on_accelerator: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def values_for(self, accelerator: bool) -> dict[str, Any]:
        """Values of options, and of `k` (or None), where the user says nothing."""
        return {"k": self.k, **self.defaults, **(self.on_accelerator if accelerator else {})}


@dataclass(frozen=True, kw_only=True)
class AdapterSpec(FactorySpec):
    """An adapter: it makes live objects speculate that keep their own loop, such as diffusers pipelines.

    Its factory is called as `factory(model, method=name, k=…, why=…)` and returns the handle that `mmspec.enable` gives
    to users: a context manager with `report`, `method`, `why` and `disable()`. Until it is disabled, the handle is an
    attribute of the model, called `mmspec.api.adapters.HANDLE`; one that is `mmspec.api.adapters.Replaceable` gives way
    to a second `enable`.

    Attributes:
        fits: `"module:function"`, imported on first use; the function says whether the adapter takes a live object.
        exactness: What the adapter promises, as of a rule.
        k: Units to draft per round where the user says nothing; None is the general default.
    """

    kind: ClassVar[str] = "adapter"
    fits: str
    exactness: Exactness
    k: int | None = None

    def takes(self, model: object) -> bool:
        """True if the adapter is for this live object.

        Raises:
            ImportError: The function `fits` cannot be imported; names the adapter.
        """
        return bool(imported(self.fits, f"the function `fits` of {self.kind} {self.qualified!r}")(model))


SPECS: tuple[type[Spec], ...] = (TargetSpec, DrafterSpec, RuleSpec, PolicySpec, MethodSpec, AdapterSpec)
KINDS = tuple(spec.kind for spec in SPECS)
