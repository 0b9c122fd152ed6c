"""Image generation over discrete codes: this plugin offers nothing yet.

To come: a target for autoregressive image models, Jacobi windows with spatial initialisation, guidance.
"""

from mmspec.registry import Component, hookimpl


@hookimpl
def mmspec_components() -> list[Component]:
    """Nothing yet, and so `mmspec methods` lists nothing of it."""
    return []
