"""Everything that tests the core and components: toy models, exact oracles, mutants, the conformance kit.

Importing this package imports nothing heavy; its names are loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmspec.testing.conformance.check import Outcome as Outcome
    from mmspec.testing.conformance.example import Example as Example
    from mmspec.testing.conformance.parametrize import parametrize_checks as parametrize_checks
    from mmspec.testing.conformance.run import check_component as check_component
    from mmspec.testing.conformance.run import checks_of as checks_of

_MODULES = {
    "Example": "example",
    "Outcome": "check",
    "check_component": "run",
    "checks_of": "run",
    "parametrize_checks": "parametrize",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'mmspec.testing' has no attribute {name!r}; it has {', '.join(sorted(_MODULES))}")
    value = getattr(importlib.import_module(f"mmspec.testing.conformance.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
