"""Where `assets/` and `model_cards/` are: inside the wheel, or beside the package in a source tree."""

from pathlib import Path

from mmspec.registry.suggest import unknown

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """The folder `assets` or `model_cards`.

    Raises:
        FileNotFoundError: If this installation has neither form of it.
    """
    for place in (_PACKAGE / "_shipped" / name, _PACKAGE.parent / name):
        if place.is_dir():
            return place
    raise FileNotFoundError(f"this installation of mmspec has no {name}: it is neither a wheel nor a source tree")


def assets() -> dict[str, Path]:
    """Shipped models by name."""
    return {path.name: path for path in sorted(folder("assets").iterdir()) if path.is_dir()}


def asset(name: str) -> Path:
    """The folder of one shipped model.

    Raises:
        ValueError: If there is none of that name; says what is nearest.
    """
    found = assets()
    if name not in found:
        raise ValueError(unknown("shipped model", name, found))
    return found[name]
