"""First-party manifests say what the classes they name say."""

from types import SimpleNamespace
from typing import Any

import pytest

import mmspec_text.plugin
from mmspec.registry import DefaultMethod, Registry, Spec, TargetSpec, hookimpl, installed, pair, require
from mmspec.registry.matching import HOME

PARTS = [c for kind in ("target", "drafter", "rule") for c in installed().components(kind)]
DEFAULTS = [(target, default) for target in installed().components("target") for default in target.default_methods]


@pytest.mark.parametrize("spec", PARTS, ids=lambda c: f"{c.kind}-{c.name}")
def test_the_class_says_what_the_spec_says(spec: Any) -> None:
    """Where it says something before it is made, and options cannot decide."""
    factory = spec.load()
    for attribute in ("needs", "offers", "exactness"):
        if attribute in vars(spec):
            assert getattr(factory, attribute, vars(spec)[attribute]) == vars(spec)[attribute], attribute
    if spec.kind != "target" and spec.options:
        assert spec.load_options().__dataclass_params__.frozen


@pytest.mark.parametrize(("target", "default"), DEFAULTS, ids=lambda c: getattr(c, "name", "default"))
def test_what_a_target_is_used_with_by_default_fits_it(target: TargetSpec, default: DefaultMethod) -> None:
    pairing = pair(installed(), default.method)
    require(installed(), pairing, target)
    assert pairing.method.owner in (target.owner, HOME)
    assert pairing.exactness in ("invariant", "lossless")


def test_every_target_of_ours_has_a_default_for_any_call_of_it() -> None:
    assert all(target.default_methods[-1].when == "" for target in installed().components("target"))


def test_the_text_target_is_for_live_models_of_transformers() -> None:
    """Which of them it can take, and why not the others, is the target's own business: it has reasons to give."""
    model = SimpleNamespace(config=SimpleNamespace(model_type="qwen3"), generate=print)
    assert installed().target_for(model).qualified == "text:transformers"
    assert installed().target_for(SimpleNamespace(config=None, generate=print)) is None
    assert installed().target_for(object()) is None


def test_a_plugin_that_knows_a_model_better_is_asked_first() -> None:
    class Better:
        @hookimpl
        def mmspec_components(self) -> list[Spec]:
            return [TargetSpec(name="better", factory="x:Y", summary="For mamba.")]

        @hookimpl
        def mmspec_target_for(self, model: Any) -> str | None:
            return "better" if model.config.model_type == "mamba" else None

    registry = Registry()
    for name, plugin in (("better", Better()), ("text", mmspec_text.plugin)):
        registry.register(plugin, name)
    for kind, target in (("mamba", "better"), ("llama", "transformers")):
        found = registry.target_for(SimpleNamespace(config=SimpleNamespace(model_type=kind), generate=print))
        assert found is not None and found.name == target
