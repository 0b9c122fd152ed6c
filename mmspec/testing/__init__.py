"""What proves the core, and what authors prove their components with: toys, oracles, mutants, the conformance kit.

Importing this package imports nothing heavy; what is exported here is loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmspec.testing.conformance.example import Example as Example
    from mmspec.testing.conformance.outcome import Outcome as Outcome
    from mmspec.testing.conformance.parametrize import parametrize_checks as parametrize_checks
    from mmspec.testing.conformance.run import check_component as check_component
    from mmspec.testing.conformance.run import checks_of as checks_of

_HOMES = {
    "Example": "mmspec.testing.conformance.example",
    "Outcome": "mmspec.testing.conformance.outcome",
    "check_component": "mmspec.testing.conformance.run",
    "checks_of": "mmspec.testing.conformance.run",
    "parametrize_checks": "mmspec.testing.conformance.parametrize",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mmspec.testing' has no attribute {name!r}; it has {', '.join(sorted(_HOMES))}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
