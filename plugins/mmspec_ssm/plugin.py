"""State-space and hybrid language models: this plugin offers nothing yet.

To come: recurrent layers with tree forward and commit, a target that rolls them back exactly.
"""

from mmspec.registry import Component, hookimpl


@hookimpl
def mmspec_components() -> list[Component]:
    """Nothing yet, and so `mmspec methods` lists nothing of it."""
    return []
