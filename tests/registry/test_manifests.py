"""First-party manifests say what the classes they name say."""

from types import SimpleNamespace

import pytest

from mmspec.registry import Component, installed

PARTS = [c for c in installed().components() if c.kind != "method"]


@pytest.mark.parametrize("component", PARTS, ids=lambda c: f"{c.kind}-{c.name}")
def test_manifest_agrees_with_the_class(component: Component) -> None:
    made = component.load()
    for attribute in ("needs", "offers", "exactness"):
        said = getattr(component, attribute)
        assert getattr(made, attribute, said) == said, attribute
    if component.options:
        assert component.load_options().__dataclass_params__.frozen


def test_the_text_target_fits_llamas_only() -> None:
    def live(kind: str) -> SimpleNamespace:
        return SimpleNamespace(config=SimpleNamespace(model_type=kind), generate=print)

    assert installed().target_for(live("llama")).qualified == "text:transformers"
    assert installed().target_for(live("mamba")) is None
    assert installed().target_for(object()) is None
