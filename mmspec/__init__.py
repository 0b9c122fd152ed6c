"""mmspec: speculative decoding beyond text.

Importing this package imports neither torch nor transformers; what is exported here is loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmspec.api.custom_generate import custom_generate as custom_generate
    from mmspec.api.enable import disable as disable
    from mmspec.api.enable import enable as enable
    from mmspec.api.pipeline import Pipeline as Pipeline
    from mmspec.core.decoder import Decoder as Decoder
    from mmspec.core.distributions import Distribution as Distribution
    from mmspec.core.types import Draft as Draft
    from mmspec.registry import Component as Component
    from mmspec.registry import hookimpl as hookimpl

__version__ = "0.1.0"

_HOMES = {
    "Component": "mmspec.registry",
    "Decoder": "mmspec.core.decoder",
    "Draft": "mmspec.core.types",
    "Distribution": "mmspec.core.distributions",
    "Pipeline": "mmspec.api.pipeline",
    "custom_generate": "mmspec.api.custom_generate",
    "disable": "mmspec.api.enable",
    "enable": "mmspec.api.enable",
    "hookimpl": "mmspec.registry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mmspec' has no attribute {name!r}; it has {', '.join(sorted(_HOMES))}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({"__version__", *_HOMES})
