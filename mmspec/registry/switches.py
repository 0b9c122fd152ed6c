"""Environment switches, read when they are needed, so that tests and notebooks can set them."""

import os
import sys

from mmspec.registry.suggest import unknown

PRODUCTS = ("torch", "packed")


def allowed() -> frozenset[str] | None:
    """`MMSPEC_PLUGINS=a,b` loads these and the core only; unset loads all (None)."""
    names = os.environ.get("MMSPEC_PLUGINS")
    return None if names is None else frozenset(n.strip() for n in names.split(",") if n.strip())


def strict() -> bool:
    """`MMSPEC_STRICT=1` raises where a plugin's failure would otherwise be listed or warned about."""
    return _on("MMSPEC_STRICT")


def tracing() -> bool:
    """`MMSPEC_TRACE=1` prints what is loaded when, and shows tracebacks of users' mistakes."""
    return _on("MMSPEC_TRACE")


def products() -> str | None:
    """`MMSPEC_PRODUCTS` forces one product of linear layers on a CPU, where unset (None) a rule chooses."""
    forced = os.environ.get("MMSPEC_PRODUCTS") or None
    if forced not in (None, *PRODUCTS):
        raise ValueError(f"MMSPEC_PRODUCTS: {unknown('product', forced, PRODUCTS)}")
    return forced


def trace(message: str) -> None:
    """Print to stderr where tracing is on."""
    if tracing():
        print(f"mmspec: {message}", file=sys.stderr)


def _on(name: str) -> bool:
    return os.environ.get(name, "").lower() not in ("", "0", "false", "no")
