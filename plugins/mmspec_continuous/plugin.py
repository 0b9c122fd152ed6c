"""Autoregressive models over continuous tokens: this plugin offers nothing yet.

To come: Gaussian and denoising-chain laws, Jacobi windows with reflection coupling.
"""

from mmspec.registry import Component, hookimpl


@hookimpl
def mmspec_components() -> list[Component]:
    """Nothing yet, and so `mmspec methods` lists nothing of it."""
    return []
