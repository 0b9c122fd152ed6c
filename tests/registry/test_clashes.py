"""A plugin that takes names: first-party methods keep their parts, and only who asks for the plain name hears of it."""

from collections.abc import Iterator
from typing import Any

import pytest

import mmspec
from mmspec.api.build import decoder_for
from mmspec.core import manifest
from mmspec.core.rules.match import Match
from mmspec.registry import MethodSpec, Registry, RuleSpec, Spec, fitting, hookimpl, installed, pair
from mmspec.registry.specs import SPECS
from mmspec.testing.tiny_models import llama, prompt
from tests.support.random_models import small

OURS = ("core", "continuous", "image", "ssm", "text", "video", "zoo")


def another(kind: str, name: str) -> Spec:
    """A component of that kind and name, which does nothing."""
    fields: dict[str, Any] = {} if kind == "method" else {"factory": "not_there:Thing"}
    fields |= {"exactness": "lossy"} if kind in ("rule", "method", "adapter") else {}
    fields |= {"fits": "operator:not_"} if kind == "adapter" else {}
    return {spec.kind: spec for spec in SPECS}[kind](name=name, summary="Another of that name.", **fields)


class Taker:
    """Offers what is there already, under the same names."""

    def __init__(self, taken: tuple[Spec, ...]) -> None:
        self._taken = taken

    @hookimpl
    def mmspec_components(self) -> Iterator[Spec]:
        for kind, name in sorted({(c.kind, c.name) for c in self._taken}):
            yield another(kind, name)


@pytest.fixture
def taken() -> Iterator[Registry]:
    """Everything that we offer is offered once more by `taker`, which came last; methods but two excepted."""
    registry = installed()
    keep = {c.name for c in registry.components("method")} - {"suffix", "auto", "plain", "draft-model"}
    registry.register(
        Taker(tuple(c for c in registry.components() if c.kind != "method" or c.name not in keep)), "taker"
    )
    yield registry
    registry.unregister("taker")


def test_every_first_party_method_still_pairs_with_our_parts(taken: Registry) -> None:
    for method in taken.components("method"):
        if method.owner in OURS:
            parts = pair(taken, method, offers={"continuous"})
            assert parts.rule.owner in (method.owner, "core")
            assert parts.drafter is None or parts.drafter.owner in (method.owner, "text")
    assert "gs-sjd" in fitting(taken, {"discrete", "codebook"})


def test_what_was_not_clashing_can_be_asked_for_as_before(taken: Registry) -> None:
    model = llama()
    with mmspec.enable(model, "prompt-lookup") as spec:
        model.generate(**prompt([0]), max_new_tokens=4, do_sample=False)
    assert spec.report.exactness == "invariant"


def test_who_names_nothing_gets_ours(taken: Registry) -> None:
    assert decoder_for(llama()).name == "suffix"
    assert isinstance(decoder_for(llama(), "plain").rule, Match)
    assert decoder_for(llama(), drafter=small()).name == "draft-model"
    assert decoder_for(llama(), "prompt-lookup", drafter=small()).drafter is not None


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (dict(method="suffix"), "method 'suffix' is offered by plugins 'text' and 'taker'; write 'text:suffix' or"),
        (dict(method="plain", rule="match"), "rule 'match' is offered by plugins 'core' and 'taker'"),
        (dict(drafter="prompt-lookup"), "drafter 'prompt-lookup' is offered by plugins 'text' and 'taker'"),
    ],
)
def test_who_asks_for_a_plain_name_hears_of_the_clash(taken: Registry, asked: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        decoder_for(llama(), **asked)
    owned = {what: f"{'core' if what == 'rule' else 'text'}:{name}" for what, name in asked.items()}
    assert isinstance(decoder_for(llama(), **owned).rule, Match)


def test_a_method_of_the_plugin_itself_has_the_plugins_own_rule() -> None:
    class Own:
        @hookimpl
        def mmspec_components(self) -> Iterator[Spec]:
            yield RuleSpec(name="match", factory="a:B", exactness="lossy", summary="Its own.")
            yield MethodSpec(name="mine", exactness="lossy", summary="Without a rule's name.")

    registry = Registry()
    registry.register(manifest, "core")
    registry.register(Own(), "own")
    assert pair(registry, "mine").rule.owner == "own"


def test_no_two_of_our_own_plugins_offer_one_name() -> None:
    names = [(c.kind, c.name) for c in installed().components() if c.owner in OURS]
    assert len(names) == len(set(names))
