"""Next-frame video and world models: this plugin offers nothing yet.

To come: frames from actions, players whose truth comes later.
"""

from mmspec.registry import Component, hookimpl


@hookimpl
def mmspec_components() -> list[Component]:
    """Nothing yet, and so `mmspec methods` lists nothing of it."""
    return []
