"""Option values from Python, from text and from tables; the messages name option, value and range."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import ByteSize, Field

from mmspec.registry import installed
from mmspec.registry.options import build, explain, parse, route


@dataclass(frozen=True)
class Lookup:
    k: Annotated[int, Field(ge=1, le=64)] = field(default=10, metadata={"help": "Units drafted a round."})
    ngram: tuple[Annotated[int, Field(ge=1)], ...] = (3, 2)
    order: Literal["recent", "frequent"] = "recent"
    exact: bool = False


@dataclass(frozen=True)
class Typical:
    threshold: Annotated[float, Field(gt=0, lt=1)]
    order: int = 1

    def __post_init__(self) -> None:
        if self.order == 13:
            raise ValueError("order 13 is not for us")


def test_python_text_and_toml_give_the_same() -> None:
    expected = Lookup(k=3, ngram=(4, 1), exact=True)
    assert build(Lookup, {"k": 3, "ngram": (4, 1), "exact": True}, "drafter 'x'") == expected
    assert build(Lookup, parse(["k=3", "ngram=[4, 1]", "exact=true"]), "drafter 'x'") == expected
    assert build(Lookup, tomllib.loads("k = 3\nngram = [4, 1]\nexact = true"), "drafter 'x'") == expected


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"k": 0}, r"drafter 'x': option 'k' is 0, allowed is int >= 1, <= 64"),
        ({"k": 65}, r"'k' is 65, allowed is int >= 1, <= 64"),
        ({"k": "eight"}, r"'k' is 'eight', allowed is int"),
        ({"k": 2.5}, r"'k' is 2.5, allowed is int"),
        ({"order": "oldest"}, "'order' is 'oldest', allowed is 'recent' or 'frequent'"),
        ({"ngram": [3, "x"]}, r"'ngram\[1\]' is 'x'"),
        ({"ngrams": 3}, r"no option is called 'ngrams'; did you mean 'ngram'\? There is: exact, k, ngram, order"),
    ],
)
def test_mistakes_are_named(values: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build(Lookup, values, "drafter 'x'")


def test_required_options_and_checks_of_the_dataclass_itself() -> None:
    with pytest.raises(ValueError, match=r"rule 't': option 'threshold' is required \(float > 0, < 1\)"):
        build(Typical, {}, "rule 't'")
    with pytest.raises(ValueError, match="rule 't': order 13 is not for us"):
        build(Typical, {"threshold": 0.5, "order": 13}, "rule 't'")


@pytest.mark.parametrize("bad", [["k"], ["=3"], ["k=1", "k=2"], ["ngram=[1"]])
def test_text_that_cannot_be_read(bad: list[str]) -> None:
    with pytest.raises(ValueError, match="option"):
        parse(bad)


def test_routing_flat_dotted_and_nested() -> None:
    parts = {"drafter": Lookup, "rule": Typical, "target": None}
    routed = {"drafter": {"k": 3}, "rule": {"threshold": 0.2, "order": 2}, "target": {}}
    assert route({"k": 3, "threshold": 0.2, "rule.order": 2}, parts) == routed
    assert route({"k": 3, "rule": {"threshold": 0.2, "order": 2}}, parts) == routed


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"order": 2}, "belongs to drafter and rule; write drafter.order= or rule.order="),
        ({"treshold": 2}, "did you mean 'threshold'"),
        ({"rule.k": 2}, "no option is called 'k'. There is: order, threshold"),
        ({"ruel.order": 2}, "no part is called 'ruel'; did you mean 'rule'"),
        ({"k": 2, "drafter.k": 3}, "given twice, as k= and as drafter.k="),
    ],
)
def test_routing_mistakes(values: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        route(values, {"drafter": Lookup, "rule": Typical})


def test_help_shows_range_default_and_text() -> None:
    first, ngram, _, last = explain(Lookup)
    assert ngram.allowed == "list of int >= 1"
    assert (first.name, first.allowed, first.default) == ("k", "int >= 1, <= 64", "10")
    assert first.help == "Units drafted a round." and last.allowed == "bool"
    assert explain(Typical)[0].default == ""


Depth = Annotated[int, Field(ge=1, le=9)]


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (Depth | None, "int >= 1, <= 9 or None"),
        (Optional[Depth], "int >= 1, <= 9 or None"),  # noqa: UP045  as get_type_hints writes it
        (tuple[Depth, ...] | None, "list of int >= 1, <= 9 or None"),
        (tuple[Depth, Depth], "list of int >= 1, <= 9"),
        (Sequence[str] | str, "list of str or str"),
        (dict[str, Annotated[float, Field(gt=0)]], "mapping of str to float > 0"),
        (Literal["a", 2] | None, "'a' or 2 or None"),
        (list[dict[str, Any]], "list of mapping of str to anything"),
        (Path | None, "Path or None"),
        (Annotated[str, Field(pattern="x")], "str"),
        (ByteSize, "bytes"),
        (list, "list"),
    ],
)
def test_types_are_said_in_words(hint: Any, words: str) -> None:
    """Also one that holds another, and where a value is refused."""
    options = make_dataclass("Options", [("value", hint)], frozen=True)
    assert explain(options)[0].allowed == words
    with pytest.raises(ValueError, match="allowed is " + re.escape(words) + r" \("):
        build(options, {"value": object()}, "x")


def test_no_option_of_ours_shows_how_python_writes_its_type() -> None:
    registry = installed()
    for kind in ("drafter", "rule"):
        for spec in registry.components(kind):
            options = spec.load_options()  # type: ignore[union-attr]
            for line in explain(options) if options is not None else ():
                assert not re.search(r"FieldInfo|typing|Annotated|[\[\]]", line.allowed), (spec.name, line)
