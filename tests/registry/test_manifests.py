"""First-party manifests say what the classes they name say."""

from types import SimpleNamespace
from typing import Any

import pytest

import mmspec_text.plugin
from mmspec.registry import Component, Registry, hookimpl, installed, pair, require

PARTS = [c for c in installed().components() if c.kind != "method"]


@pytest.mark.parametrize("component", PARTS, ids=lambda c: f"{c.kind}-{c.name}")
def test_manifest_agrees_with_the_class(component: Component) -> None:
    made = component.load()
    for attribute in ("needs", "offers", "exactness"):
        said = getattr(component, attribute)
        assert getattr(made, attribute, said) == said, attribute
    if component.options:
        assert component.load_options().__dataclass_params__.frozen


@pytest.mark.parametrize("target", [c for c in PARTS if c.default_method], ids=lambda c: c.name)
def test_what_a_target_is_used_with_by_default_fits_it(target: Component) -> None:
    pairing = pair(installed(), target.default_method)
    require(installed(), pairing, target)
    assert pairing.method.owner == target.owner
    assert pairing.exactness in ("invariant", "lossless") and (target.default_k or 1) > 0


def test_the_text_target_is_for_live_models_of_transformers() -> None:
    """Which of them it can take, and why not the others, is the target's own business: it has reasons to give."""
    model = SimpleNamespace(config=SimpleNamespace(model_type="qwen3"), generate=print)
    assert installed().target_for(model).qualified == "text:transformers"
    assert installed().target_for(SimpleNamespace(config=None, generate=print)) is None
    assert installed().target_for(object()) is None


def test_a_plugin_that_knows_a_model_better_is_asked_first() -> None:
    class Better:
        @hookimpl
        def mmspec_components(self) -> list[Component]:
            return [Component(name="better", kind="target", factory="x:Y", summary="For mamba.")]

        @hookimpl
        def mmspec_target_for(self, model: Any) -> str | None:
            return "better" if model.config.model_type == "mamba" else None

    registry = Registry()
    for name, plugin in (("better", Better()), ("text", mmspec_text.plugin)):
        registry.register(plugin, name)
    for kind, target in (("mamba", "better"), ("llama", "transformers")):
        found = registry.target_for(SimpleNamespace(config=SimpleNamespace(model_type=kind), generate=print))
        assert found is not None and found.name == target
