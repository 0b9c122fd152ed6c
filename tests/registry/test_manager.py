"""Looking up, clashing names, hooks on live models, plugins registered by hand."""

from types import SimpleNamespace

import pytest

from mmspec.registry import (
    AdapterSpec,
    DrafterSpec,
    PluginError,
    Registry,
    Spec,
    TargetSpec,
    answering,
    hookimpl,
    hookspec,
)


class Offers:
    """A plugin made of an object."""

    def __init__(self, *components: Spec) -> None:
        self.components = components

    @hookimpl
    def mmspec_components(self):
        return self.components


def drafter(name: str) -> DrafterSpec:
    return DrafterSpec(name=name, factory="fractions:Fraction", summary="A drafter.")


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    registry.register(Offers(drafter("suffix"), drafter("recycling")), "one")
    registry.register(Offers(drafter("suffix")), "two")
    return registry


def test_owner_is_filled_in(registry) -> None:
    assert registry.get("drafter", "recycling").qualified == "one:recycling"


def test_a_clash_names_both_owners_and_the_qualified_name_works(registry) -> None:
    with pytest.raises(ValueError, match="plugins 'one' and 'two'; write 'one:suffix' or 'two:suffix'"):
        registry.get("drafter", "suffix")
    assert registry.get("drafter", "two:suffix").owner == "two"
    assert registry.get("drafter", "suffix", near=("two",)).owner == "two"
    registry.unregister("one")
    assert registry.get("drafter", "suffix").owner == "two"


OFFERED = (drafter("suffix"),)


def test_a_hook_may_be_the_place_of_its_answer() -> None:
    registry = Registry()
    registry.register(type("There", (), {"mmspec_components": answering(f"{__name__}:OFFERED")}), "there")
    assert registry.get("drafter", "suffix").owner == "there"
    with pytest.raises(ImportError, match="should be at 'fractions:Gone', which cannot be imported"):
        registry.register(type("Gone", (), {"mmspec_components": answering("fractions:Gone")}), "gone")


def test_unknown_names_teach(registry) -> None:
    with pytest.raises(ValueError, match=r"did you mean 'recycling'\? There is: recycling, suffix"):
        registry.get("drafter", "recyclin")
    with pytest.raises(ValueError, match="no plugin is called 'tow'; did you mean 'two'"):
        registry.get("drafter", "tow:suffix")
    with pytest.raises(ValueError, match="did you mean 'one:recycling'"):
        registry.get("drafter", "two:recycling")
    with pytest.raises(ValueError, match="There is a drafter of that name"):
        registry.get("rule", "recycling")
    with pytest.raises(ValueError, match="did you mean 'rule'"):
        registry.get("rules", "match")
    with pytest.raises(TypeError, match="by its name"):
        registry.get("rule", 3)


def test_registering_by_hand_raises_and_leaves_nothing(registry) -> None:
    with pytest.raises(ValueError, match="already there"):
        registry.register(Offers(), "one")
    with pytest.raises(ValueError, match="given twice"):
        registry.register(Offers(drafter("a"), drafter("a")), "three")
    with pytest.raises(TypeError, match="yields specs only"):
        registry.register(Offers("suffix"), "three")
    registry.register(Offers(drafter("a")), "three")
    assert registry.get("drafter", "a").owner == "three"


class Adapter(Offers):
    @hookimpl
    def mmspec_target_for(self, model):
        if model.kind == "bad":
            raise RuntimeError("cannot look at this")
        return "net" if model.kind == "net" else None


def target(name: str) -> TargetSpec:
    return TargetSpec(name=name, factory="fractions:Fraction", summary="A target.")


def test_target_for_asks_the_last_plugin_first_and_takes_its_own_component(registry) -> None:
    registry.register(Adapter(target("net")), "old")
    registry.register(Adapter(target("net")), "new")
    assert registry.target_for(SimpleNamespace(kind="net")).owner == "new"
    assert registry.target_for(SimpleNamespace(kind="other")) is None


def adapter(name: str, fits: str) -> AdapterSpec:
    facts = dict(factory="fractions:Fraction", exactness="lossless", summary="An adapter.")
    return AdapterSpec(name=name, fits=fits, **facts)


def test_adapters_are_asked_one_by_one_and_one_that_fails_is_noted_on_its_plugin(registry) -> None:
    registry.register(Offers(adapter("none", "operator:not_"), adapter("any", "operator:truth")), "acme")
    registry.register(Offers(adapter("broken", "operator:neg")), "odd")
    with pytest.warns(UserWarning, match="plugin 'odd' failed in the adapter 'broken'"):
        assert [found.qualified for found in registry.adapters_for("a pipeline")] == ["acme:any"]
    with pytest.raises(ValueError, match="There is an adapter of that name"):
        registry.get("method", "any")


def test_a_hook_that_raises_is_noted_on_its_plugin_only(registry, monkeypatch) -> None:
    registry.register(Adapter(target("net")), "bad")
    with pytest.warns(UserWarning, match="plugin 'bad' failed in mmspec_target_for: cannot look"):
        assert registry.target_for(SimpleNamespace(kind="bad")) is None
    assert {p.name: p.status for p in registry.plugins()} == {"one": "ok", "two": "ok", "bad": "error"}
    monkeypatch.setenv("MMSPEC_STRICT", "1")
    with pytest.raises(PluginError):
        registry.target_for(SimpleNamespace(kind="bad"))


def test_a_plugin_may_declare_hooks_for_others(registry) -> None:
    class Declares(Offers):
        @hookspec
        def mmspec_tree_ops(self):
            """Operations on trees."""

    class Implements(Offers):
        @hookimpl
        def mmspec_tree_ops(self):
            return ["scan"]

    with pytest.raises(ValueError, match="no hook is called 'mmspec_tree_ops'"):
        registry.register(Implements(), "before")
    registry.register(Declares(), "ssm")
    registry.register(Implements(), "after")
