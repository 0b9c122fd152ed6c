"""A method fits when what it needs is offered; if not, the error names the word and what fits instead."""

import pytest

from mmspec.registry import MethodSpec, Registry, Spec, fitting, hookimpl, pair, require
from mmspec.registry.specs import SPECS


def part(kind: str, name: str, **facts) -> Spec:
    kinds = {spec.kind: spec for spec in SPECS}
    return kinds[kind](name=name, factory="fractions:Fraction", summary="A part.", **facts)


def method(name: str, **facts) -> MethodSpec:
    return MethodSpec(name=name, exactness="invariant", summary="A method.", **facts)


class Plugin:
    @hookimpl
    def mmspec_components(self):
        yield part("rule", "match", needs={"discrete"}, offers={"redraw"}, exactness="invariant")
        yield part("rule", "typical", needs={"chain", "q"}, exactness="lossy")
        yield part("drafter", "tree", offers={"tree"})
        yield part("drafter", "sampled", offers={"chain", "q"})
        yield part("drafter", "window", offers={"chain"}, needs={"redraw"})
        yield method("plain")
        yield method("trees", drafter="tree", needs={"hidden"})
        yield method("dangling", drafter="gone")


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    registry.register(Plugin(), "acme")
    return registry


def test_needs_are_what_the_parts_leave_for_the_target(registry) -> None:
    assert pair(registry, "trees").needs == {"discrete", "tree", "hidden"}
    assert pair(registry, "plain", drafter="sampled", rule="typical").needs == frozenset()
    assert pair(registry, "plain", drafter="window").needs == {"discrete"}
    assert pair(registry, "plain", drafter="window", rule="typical").needs == {"redraw", "q"}


def test_no_draft_is_a_chain_and_a_tree_is_not(registry) -> None:
    assert pair(registry, "plain", rule="typical").needs == {"q"}
    assert pair(registry, "plain", drafter="tree", rule="typical").needs == {"chain", "q", "tree"}


def test_fits_names_what_is_missing(registry) -> None:
    assert pair(registry, "trees").missing({"discrete", "tree"}) == {"hidden"}
    assert pair(registry, "trees").missing({"discrete", "tree", "hidden", "more"}) == frozenset()


def test_a_pair_promises_no_more_than_its_rule(registry) -> None:
    assert pair(registry, "plain").exactness == "invariant"
    assert pair(registry, "plain", rule="typical").exactness == "lossy"


def test_plain_decoding_takes_the_rule_that_the_target_admits(registry) -> None:
    class Drawing:
        @hookimpl
        def mmspec_components(self):
            yield part("rule", "rejection", needs={"chain"}, exactness="lossless")

    assert "plain" not in fitting(registry, {"continuous"})
    registry.register(Drawing(), "core")
    assert "plain" in fitting(registry, {"continuous"}) and fitting(registry, {"discrete"}) == ["plain"]
    for offers, rule in (({"discrete"}, "match"), ({"continuous"}, "rejection"), (None, "match")):
        assert pair(registry, "plain", offers=offers).rule.name == rule
    drafting = pair(registry, "plain", drafter="sampled", offers={"continuous"})
    assert drafting.rule.name == "match" and drafting.missing({"continuous"}) == {"discrete"}, "drafts are verified"
    with pytest.raises(ValueError, match="needs discrete"):
        require(registry, pair(registry, "plain", rule="match", offers={"continuous"}), part("target", "waves"))


def test_methods_whose_parts_are_missing_do_not_fit(registry) -> None:
    assert fitting(registry, {"discrete", "tree", "hidden"}) == ["plain", "trees"]
    with pytest.raises(ValueError, match="no drafter is called 'gone'"):
        pair(registry, "dangling")


def test_refusal_names_the_word_who_needs_it_and_what_fits(registry) -> None:
    target = part("target", "net", offers={"discrete", "hidden"})
    require(registry, pair(registry, "plain"), target)
    with pytest.raises(ValueError, match=r"drafter 'tree' needs tree.*offers discrete, hidden.*fit: plain"):
        require(registry, pair(registry, "trees"), target)
