"""A component: one line of a plugin's manifest. Describing it imports nothing; using it does."""

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from mmspec.registry.printable import refuse_control
from mmspec.registry.suggest import unknown

Kind = Literal["target", "drafter", "rule", "method"]
Exactness = Literal["invariant", "lossless", "lossy", "synthetic"]
KINDS: tuple[str, ...] = get_args(Kind)
#: From the strongest promise to none.
EXACTNESS: tuple[str, ...] = get_args(Exactness)
DEFAULT_RULE = "match"
#: What decodes without drafts where nobody names a rule: the first that the target's units admit.
PLAIN_RULES = (DEFAULT_RULE, "rejection")

NAME = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One thing that a plugin offers.

    Attributes:
        name: Lower-case words joined by `-`, `.` or `_`; the name in the literature where there is one.
        kind: `target`, `drafter`, `rule` or `method`.
        factory: `"module:Attribute"`, imported on first use. A method has none.
        needs: Words that the others (target, drafter, rule) have to offer.
        offers: Words that this one offers to the others.
        exactness: What a rule or method promises: `invariant` (the plain output for that seed), `lossless` (the plain
            distribution), `lossy`, `synthetic` (benchmarks only).
        summary: What it is, in at most 80 characters.
        paper: Where it comes from: a link.
        options: `"module:Class"` of a frozen dataclass, imported on first use; None where there is nothing to set.
        pipeline: Of a target: `"module:Class"` of the pipeline for its models, or "" where there is none.
        default_method: Of a target: what `auto` uses for its models; "" leaves it to drafts that any model can have.
        default_k: Of a target: units that this method then drafts per round; None is the general default.
        drafter: Of a method: the drafter's name, or None to decode without drafts.
        rule: Of a method: the rule's name, or None for the default, `match`; without drafts, for whatever can draw.
        defaults: Of a method: option values that differ from the drafter's or rule's own defaults.
        owner: The plugin that offers it; filled in by the registry.

    Raises:
        ValueError: If a value is outside what is listed above.

    Example:
        >>> Component(name="repeat-last", kind="drafter", factory="my_drafter:RepeatLast", summary="Repeat a token.")
    """

    name: str
    kind: Kind
    factory: str | None = None
    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()
    exactness: Exactness | None = None
    summary: str
    paper: str = ""
    options: str | None = None
    pipeline: str = ""
    default_method: str = ""
    default_k: int | None = None
    drafter: str | None = None
    rule: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)
    owner: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ValueError(f"a component's name is lower-case words joined by '-', '.' or '_', not {self.name!r}")
        if self.kind not in KINDS:
            raise ValueError(f"component {self.name!r}: {unknown('kind', str(self.kind), KINDS)}")
        for words in ("needs", "offers"):
            object.__setattr__(self, words, self._words(words))
        object.__setattr__(self, "defaults", MappingProxyType(dict(self.defaults)))
        self._check_text()
        self._check_promise()
        self._check_parts()

    @property
    def qualified(self) -> str:
        """The name that no other plugin can take: `plugin:name`."""
        return f"{self.owner}:{self.name}" if self.owner else self.name

    def load(self) -> Any:
        """Import the factory.

        Raises:
            TypeError: If this is a method, which has no factory.
            ImportError: If the factory cannot be imported; names the component.
        """
        if self.factory is None:
            raise TypeError(f"method {self.qualified!r} has no factory; load its drafter and its rule instead")
        return _import(self.factory, f"{self.kind} {self.qualified!r}")

    def load_options(self) -> type | None:
        """Import the options dataclass, or return None where there is nothing to set.

        Raises:
            ImportError: If it cannot be imported; names the component.
            ValueError: If it is no dataclass, or the help of a field holds control characters.
        """
        if self.options is None:
            return None
        whose = f"the options of {self.kind} {self.qualified!r}"
        options: type = _import(self.options, whose)
        if not (isinstance(options, type) and is_dataclass(options)):
            raise ValueError(f"{whose} are a dataclass, and {self.options} is none")
        for option in fields(options):
            refuse_control(str(option.metadata.get("help", "")), f"the help of {option.name!r} among {whose}")
        return options

    def load_pipeline(self) -> Any:
        """Import the pipeline class.

        Raises:
            ValueError: If there is none; says what to use instead.
            ImportError: If it cannot be imported; names the component.
        """
        if not self.pipeline:
            raise ValueError(f"the {self.kind} {self.qualified!r} has no pipeline; use mmspec.enable on the model")
        return _import(self.pipeline, f"the pipeline of {self.kind} {self.qualified!r}")

    def _words(self, attribute: str) -> frozenset[str]:
        words = getattr(self, attribute)
        # A bare string is iterable too, and would pass as a set of letters.
        if isinstance(words, str) or not all(isinstance(w, str) and NAME.fullmatch(w) for w in words):
            raise ValueError(f"component {self.name!r}: {attribute} is a set of lower-case words, not {words!r}")
        return frozenset(words)

    def _check_text(self) -> None:
        for attribute in ("summary", "paper"):
            text = getattr(self, attribute)
            if not isinstance(text, str):
                raise ValueError(f"component {self.name!r}: {attribute} is a text, not {text!r}")
            refuse_control(text, f"the {attribute} of {self.kind} {self.name!r}")
        if not 0 < len(self.summary) <= 80:
            raise ValueError(f"component {self.name!r}: a summary has 1 to 80 characters, this one {len(self.summary)}")
        paths = {"factory": self.factory, "options": self.options, "pipeline": self.pipeline or None}
        for attribute, path in paths.items():
            if path is not None and not _PATH.fullmatch(path):
                raise ValueError(f"component {self.name!r}: {attribute} is written 'module:Name', not {path!r}")
        for attribute in ("pipeline", "default_method", "default_k"):
            if getattr(self, attribute) and self.kind != "target":
                raise ValueError(f"{self.kind} {self.name!r}: {attribute} belongs to a target; leave it out")

    def _check_promise(self) -> None:
        if self.kind not in ("rule", "method"):
            if self.exactness is not None:
                raise ValueError(f"{self.kind} {self.name!r}: exactness belongs to rules and methods; leave it out")
        elif self.exactness not in EXACTNESS:
            says = f"a {self.kind} says how exact it is: one of {', '.join(EXACTNESS)}"
            raise ValueError(f"component {self.name!r}: {says}; not {self.exactness!r}")

    def _check_parts(self) -> None:
        if self.kind == "method":
            if self.factory is not None or self.options is not None:
                raise ValueError(f"method {self.name!r}: a method names a drafter and a rule, no factory, no options")
        elif self.factory is None:
            raise ValueError(f"{self.kind} {self.name!r}: factory is missing; write factory='module:Name'")
        elif self.drafter or self.rule or self.defaults:
            raise ValueError(f"{self.kind} {self.name!r}: drafter, rule and defaults belong to methods only")


def _import(path: str, whose: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"{whose} should be at {path!r}, which cannot be imported: {error}") from error
