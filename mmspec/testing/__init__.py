"""Everything that tests the core and components: toy models, exact oracles, mutants, the conformance kit.

Importing this package imports nothing heavy; its names are loaded on first use.
"""

from typing import TYPE_CHECKING

from mmspec.lazy import lazily

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
__getattr__, __dir__ = lazily(__name__, {name: f"mmspec.testing.conformance.{home}" for name, home in _MODULES.items()})
