"""Everything that tests the core and components: toy models, exact oracles, the conformance kit.

Importing this package imports nothing heavy; its names are loaded on first use.
"""

from typing import TYPE_CHECKING

from mmspec.lazy import lazily

if TYPE_CHECKING:
    from mmspec.testing.conformance.check import Outcome as Outcome
    from mmspec.testing.conformance.example import Example as Example
    from mmspec.testing.conformance.run import check_component as check_component
    from mmspec.testing.conformance.run import checks_of as checks_of
    from mmspec.testing.conformance.run import parametrize_checks as parametrize_checks

_HOMES = {
    "Example": "mmspec.testing.conformance.example",
    "Outcome": "mmspec.testing.conformance.check",
    "check_component": "mmspec.testing.conformance.run",
    "checks_of": "mmspec.testing.conformance.run",
    "parametrize_checks": "mmspec.testing.conformance.run",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
