"""Where the shipped models (`assets/`) and their cards (`model_cards/`) are.

A source tree has both beside the package. Elsewhere they come with the distribution `mmspec-models`, which is optional:
`pip install 'mmspec[models]'`.
"""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmspec.packaged import MODELS, cache
from mmspec.registry.suggest import unknown

PACKAGE = "mmspec_models"  # the namespace package that the second distribution installs: files, no code
MISSING = "the shipped models are not installed: pip install 'mmspec[models]', or in a clone pip install ./assets"
BENCHES = (".bench.json", ".further.bench.json")
"""Ends of the names of a model's benchmark beside its card, and of a second one, of methods that the first left out."""
_TREE = Path(__file__).resolve().parent.parent


def folder(name: str) -> Path:
    """The folder `assets` or `model_cards`; refuses where neither a source tree nor `mmspec-models` is there."""
    for place in _places():
        if (place / name).is_dir():
            return place / name
    raise ValueError(MISSING)


def present() -> bool:
    """True if this installation has the shipped models."""
    return any((place / "assets").is_dir() for place in _places())


def assets() -> dict[str, Path]:
    """Folders of the shipped models by name; empty where they are not installed."""
    return {path.name: path for path in sorted(folder("assets").iterdir()) if path.is_dir()} if present() else {}


def asset(name: str) -> Path:
    """The folder of one shipped model."""
    models = assets()
    if name not in models:
        raise ValueError(unknown("shipped model", name, models) if present() else f"mmspec/{name}: {MISSING}")
    return models[name]


def known_as(place: Path) -> str:
    """The name of the model in a folder: `mmspec/…` if it ships, else the name under which it was fetched.

    It is "" of any other model, and of all where the shipped models and their cards are not installed.
    """
    names = {path.resolve(): f"mmspec/{name}" for name, path in assets().items()}
    names |= {(cache() / name).resolve(): name for name in MODELS} if names else {}
    return names.get(place.resolve(), "")


def card_of(name: str) -> dict[str, Any]:
    """The `mmspec:` block of a card beside the shipped ones; empty if there is no card of that name."""
    from huggingface_hub import ModelCard

    path = folder("model_cards") / f"{name}.md"
    found = ModelCard.load(path).data.to_dict().get("mmspec") if path.is_file() else None
    return dict(found) if isinstance(found, dict) else {}


def heads_of(target: str) -> dict[str, str]:
    """The names of a model's shipped heads, and the method that each is for; `target` as in `known_as`, "" has none."""
    facts = {name: place / "training.json" for name, place in assets().items() if target}
    told = {name: json.loads(file.read_text()) for name, file in facts.items() if file.is_file()}
    return {name: card_of(name)["default_method"] for name, fact in told.items() if fact.get("target") == target}


def _places() -> Iterator[Path]:
    """The source tree, then the installed distribution."""
    if (_TREE / "assets" / "pyproject.toml").is_file():
        yield _TREE
    spec = find_spec(PACKAGE)
    yield from map(Path, (spec and spec.submodule_search_locations) or ())
