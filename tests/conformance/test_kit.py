"""The kit itself: expected failures, names, the command, pytest, and what it costs to import."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import typer

from mmspec.cli import main
from mmspec.cli.check import check
from mmspec.core.drafters.host import HostDrafterAdapter
from mmspec.hosts.target import TransformersTarget
from mmspec.registry import DrafterSpec, MethodSpec, RuleSpec, installed
from mmspec.testing import Example, check_component, checks_of, parametrize_checks
from mmspec.testing.conformance.benches import history
from mmspec.testing.conformance.check import promises
from mmspec.testing.conformance.example import examples_of
from mmspec.testing.conformance.subject import Subject
from tests.support.examples import EXAMPLES


class Last:
    """The tutorial's drafter: repeats the last unit."""

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        return [row[-1:] * k for row in tokens]


def repeat() -> HostDrafterAdapter:
    return HostDrafterAdapter(Last())


class Unwrapped(Last):
    offers = frozenset({"chain"})
    needs = frozenset({"discrete"})


@dataclass(frozen=True)
class SilentOptions:
    """Options without help."""

    depth: int = 3
    width: int = field(default=2, metadata={"help": "how wide"})


class Shy(HostDrafterAdapter):
    """Speaks of the first half of its text only."""

    def __init__(self, options: SilentOptions = SilentOptions()) -> None:
        super().__init__(Last())


def one(factory: Any, **manifest: Any) -> DrafterSpec:
    said = {"offers": frozenset({"chain"}), "needs": frozenset({"discrete"}), **manifest}
    return DrafterSpec(name=said.pop("name", "mine"), factory=f"{__name__}:{factory.__name__}", summary="Mine.", **said)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One toy."""
    monkeypatch.setattr("mmspec.testing.conformance.subject.toys", lambda: [history()])


@pytest.mark.usefixtures("quick")
def test_a_ten_line_drafter_passes(acme: Callable) -> None:
    found = {o.check: o for o in check_component("mine", registry=acme(one(repeat)))}
    skipped = {"import-is-cheap", "manifest-agrees"}
    assert {name for name, o in found.items() if o.status != "pass"} <= skipped, found
    assert "acceptance length" in found["match-equals-plain"].number


@pytest.mark.usefixtures("quick")
def test_expected_failures_are_shown_and_must_fail(acme: Callable) -> None:
    registry = acme(one(Shy, options=f"{__name__}:SilentOptions"))
    why = {"options-are-explained": "no time", "mine/never-raises": "it is new"}
    found = {o.check: o for o in check_component("acme", registry=registry, expected_failures=why)}
    shown = found["options-are-explained"]
    assert (shown.status, shown.reason, shown.number) == ("xfail", "no time", "1 of 2 explained")
    assert found["never-raises"].status == "fail" and "passes now; remove" in found["never-raises"].reason
    assert {o.check for o in found.values() if o.status == "fail"} == {"never-raises"}
    with pytest.raises(ValueError, match=r"no check is called 'never-rases'; did you mean 'never-raises'"):
        checks_of("acme", registry=registry, expected_failures={"never-rases": "typo"})


@pytest.mark.usefixtures("quick")
def test_a_host_drafter_that_is_not_wrapped_is_told_how(acme: Callable) -> None:
    found = {o.check: o for o in check_component("mine", registry=acme(one(Unwrapped)))}
    assert {o.check for o in found.values() if o.status == "fail"} == {"can-be-made"}
    assert "HostDrafterAdapter(it)" in found["can-be-made"].reason
    assert found["never-raises"].status == "skip" and found["never-raises"].reason


def test_names_mean_plugins_components_and_every_kind_of_a_name(acme: Callable) -> None:
    method = MethodSpec(name="mine", drafter="mine", exactness="invariant", summary="Mine.")
    registry = acme(one(repeat), method, one(repeat, name="other"))
    kinds = {(c.component.kind, c.component.name) for c in checks_of("mine", registry=registry)}
    assert kinds == {("drafter", "mine"), ("method", "mine")}
    assert {c.component.name for c in checks_of("acme", registry=registry)} == {"mine", "other"}
    assert {c.component.name for c in checks_of("acme:other", registry=registry)} == {"other"}
    assert {c.component.name for c in checks_of(one(repeat), registry=registry)} == {"mine"}
    with pytest.raises(ValueError, match=r"no plugin or component is called 'othr'; did you mean 'other'"):
        checks_of("othr", registry=registry)


def test_an_exactness_that_the_rule_does_not_have(acme: Callable) -> None:
    rule = RuleSpec(
        name="r",
        factory="mmspec.core.rules.rejection:Rejection",
        exactness="lossless",
        needs=frozenset({"chain"}),
        offers=frozenset({"redraw"}),
        summary="A rule.",
    )
    method = MethodSpec(name="m", drafter="mine", rule="r", exactness="invariant", summary="Mine.")
    checks = {c.name: c for c in checks_of("m", registry=acme(one(repeat), rule, method))}
    with pytest.raises(AssertionError, match="promises more than its rule"):
        checks["rule-keeps-the-promise"]()
    assert checks["parts-exist"]() == "acme:mine + acme:r"
    with pytest.raises(AssertionError, match="rows are not the plain ones"):
        checks["sampled-equals-plain"]()
    assert "0 of" in checks["greedy-equals-plain"]()


def test_every_check_says_what_it_promises() -> None:
    found = promises()
    assert len({(p.name, kind) for p in found for kind in p.kinds}) == sum(len(p.kinds) for p in found)
    assert all(p.text.endswith(".") and len(p.text) < 120 for p in found), [p.text for p in found]


@pytest.mark.usefixtures("quick")
@parametrize_checks("plain", expected_failures={"parts-exist": "to see that pytest is told"})
def test_checks_are_tests(check: Callable[[], str], request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.id
    assert name.startswith("method-plain-")
    assert check()
    assert (request.node.get_closest_marker("xfail") is None) == ("parts-exist" not in name)
    if "parts-exist" in name:
        pytest.fail("as expected")


def mmspec(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "200"} | environment
    return subprocess.run([sys.executable, "-m", "mmspec", *arguments], env=environment, capture_output=True, text=True)


CLAIMS = """
from mmspec.core.rules import Rejection
class Claims(Rejection):
    exactness = "invariant"
"""
PLUGIN = """
from mmspec.registry import RuleSpec, hookimpl

@hookimpl
def mmspec_components():
    yield RuleSpec(name="claims", factory="claims_too_much:Claims", exactness="invariant",
                    needs=frozenset({"chain"}), offers=frozenset({"redraw"}), summary="Too much.")
"""


def test_the_command(install: Callable, tmp_path: Any) -> None:
    site = install("boast", PLUGIN)
    (site / "claims_too_much.py").write_text(CLAIMS)
    run = mmspec("check", "boast", "--json", PYTHONPATH=str(site))
    assert run.returncode == 1, run.stderr
    found = {row["check"]: row for row in json.loads(run.stdout)}
    assert [name for name, row in found.items() if row["status"] == "fail"] == ["output-equals-plain"]
    assert found["output-equals-plain"]["component"] == "boast:claims"
    assert found["import-is-cheap"]["status"] == "pass" and found["import-is-cheap"]["number"].endswith(" ms")


@pytest.mark.usefixtures("quick")
def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(typer.Exit) as left:
        check("plain")
    out = capsys.readouterr().out
    assert left.value.exit_code == 0
    assert "method text:plain" in out and "rows differ" in out
    assert out.splitlines()[-1].startswith("components: 1, checks: 7: 7 pass")
    with pytest.raises(ValueError, match="did you mean 'prompt-lookup'"):
        check("prompt-lokup")


def test_without_scipy_one_line_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setattr("mmspec.cli.check._outcomes", lambda *given: pytest.fail("it began"))
    monkeypatch.setattr(sys, "argv", ["mmspec", "check", "plain"])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    assert left.value.code == 2 and not said.out
    assert said.err.count("\n") == 1 and 'pip install "mmspec[check]"' in said.err
    with pytest.raises(ValueError, match="needs scipy"):
        check_component("plain")


def test_importing_the_exports_is_cheap() -> None:
    script = (
        "import sys, mmspec.testing as t; "
        "print([name for name in ('torch', 'scipy', 'pytest') if name in sys.modules], 'Outcome' in dir(t))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[] True\n"


def test_an_example_that_says_too_little() -> None:
    with pytest.raises(ValueError, match="needs prompt="):
        Example(target=history().target)
    with pytest.raises(ValueError, match="at least 1; got 0"):
        Example(rows=0)


class WrongExample(Last):
    @staticmethod
    def example() -> int:
        return 3


def test_examples_are_given_or_come_from_the_factory_or_from_the_kit() -> None:
    assert isinstance(examples_of(installed().get("target", "text:transformers"), {})[0].target, TransformersTarget)
    assert not hasattr(TransformersTarget, "example")
    assert examples_of(one(repeat), {}) == []
    single = Example(rows=1)
    assert examples_of(one(repeat), {"mine": lambda: single}) == [single]
    assert examples_of(one(WrongExample), {"mine": lambda: [single]}) == [single]
    with pytest.raises(TypeError, match="of 'mine' returns 3, not an Example or a list of them"):
        examples_of(one(WrongExample), {})


@pytest.mark.usefixtures("quick")
def test_our_own_components_are_tried_where_their_examples_are() -> None:
    """They come with the tests; what a stranger makes of our components is tried without them, with the defaults."""
    assert EXAMPLES.keys() <= {c.qualified for c in installed().components()}
    for name in ("text:eagle", "text:suffix", "text:prompt-lookup", "image:llamagen", "video:nfd"):
        found = {o.check: o for o in check_component(name)}
        assert {o.status for o in found.values()} == {"pass", "skip"} and found["import-is-cheap"].status == "pass"
        assert any("comes with the tests of mmspec's repository" in o.reason for o in found.values())
    theirs = MethodSpec(name="m", drafter="text:prompt-lookup", exactness="invariant", summary="Ours, renamed.")
    subject = Subject(replace(theirs, owner="acme"), installed())
    assert [trial.example.options for trial in subject.trials][:1] == [None]
