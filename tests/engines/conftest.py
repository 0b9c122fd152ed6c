"""Clusters around pipelines: Ray.

`make test-engines` installs them into an environment of their own; an engine that is not installed is skipped.
"""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are of the tier `engines`."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engines)
