"""Hostile plugins: each is listed with its error, and harms nobody else."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest

from mmspec.registry import DrafterSpec, Spec, hookimpl, installed, load, pair
from mmspec.registry.specs import KINDS, SPECS

FIELDS = sorted({(spec, f.name) for spec in SPECS for f in fields(spec) if f.name != "owner"}, key=str)
VALUES: tuple[Any, ...] = (
    7,
    b"bytes",
    ["a", 7],
    object(),
    "x\x1b[31m",
    "two\nlines",
    "right\u202eleft",
    "zero\u200bwidth",
    "../evil",
    "__import__('os')",
    "x" * 500,
)
GOOD = dict(name="good", factory="some:Thing", summary="Drafts.")
MORE: dict[str, dict[str, Any]] = {
    "rule": {"exactness": "lossy"},
    "method": {"exactness": "lossy"},
    "adapter": {"exactness": "lossy", "fits": "operator:not_"},
}
FIRST_PARTY = [c.name for c in installed().components("method")]


def good(kind: str, **changed: Any) -> Spec:
    facts = GOOD | MORE.get(kind, {}) | changed
    if kind == "method":
        del facts["factory"]
    return {spec.kind: spec for spec in SPECS}[kind](**facts)


@pytest.mark.parametrize("field,value", itertools.product(FIELDS, VALUES))
def test_a_field_that_is_none_of_its_values(attempt: Callable, field: tuple[type[Spec], str], value: Any) -> None:
    spec, name = field

    def harmless(made: Spec) -> bool:
        """Plain text is a name or a sentence, whatever it says; a number is a number of units."""
        texts = ("name", "summary", "paper", "drafter", "rule", "wrt")
        return (name == "k" and value == 7) or (name in texts and isinstance(value, str) and value.isprintable())

    attempt(lambda: good(spec.kind, **{name: value}), harmless)


CLASHING = [(c.kind, c.name) for kind in KINDS for c in installed().components(kind)]


@pytest.mark.parametrize("kind,name", CLASHING)
def test_a_name_that_is_taken(kind: str, name: str) -> None:
    """Every method of ours still finds its parts; the method whose own name clashes is found by its full name."""
    registry = load()

    class Plugin:
        @hookimpl
        def mmspec_components(self) -> Iterator[Spec]:
            yield good(kind, name=name)

    registry.register(Plugin(), "thief")
    for method in installed().components("method"):
        found = pair(registry, next(c for c in registry.components("method") if c.qualified == method.qualified))
        assert "thief" not in {found.rule.owner, found.drafter.owner if found.drafter else ""}
    with pytest.raises(ValueError, match=f"thief:{name}"):
        registry.get(kind, name)


def yields(*values: Any) -> Callable[[], Iterator[Any]]:
    return lambda: iter(values)


def fails() -> Iterator[Spec]:
    yield DrafterSpec(**GOOD)
    raise RuntimeError("half\x1b[2J of it\nfailed")


def leaves() -> Iterator[Spec]:
    raise SystemExit(3)


MANIFESTS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "a number": lambda: 7,
    "numbers": yields(1, 2),
    "a dictionary": yields(GOOD),
    "the class": yields(DrafterSpec),
    "twice the same": yields(DrafterSpec(**GOOD), DrafterSpec(**GOOD)),
    "fails half-way": fails,
    "leaves": leaves,
    "text": lambda: "components",
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_is_none(attempt: Callable, name: str) -> None:
    registry = load()

    class Plugin:
        @hookimpl
        def mmspec_components(self) -> Any:
            return MANIFESTS[name]()

    try:
        registry.register(Plugin(), "hostile")
    except (Exception, SystemExit) as error:
        assert name in ("leaves", "fails half-way") or isinstance(error, ValueError | TypeError), error
    for method in FIRST_PARTY:
        pair(registry, method)


@pytest.mark.parametrize("answer", [7, "nowhere", "", b"x", object(), ["transformers"], RuntimeError("no")])
def test_a_target_for_that_answers_nonsense(attempt: Callable, answer: Any) -> None:
    registry = load()

    class Plugin:
        @hookimpl
        def mmspec_target_for(self, model: object) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    registry.register(Plugin(), "hostile")
    attempt(lambda: registry.target_for(object()), lambda made: made is None)
