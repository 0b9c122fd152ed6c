"""mmspec: speculative decoding beyond text.

Importing this package imports neither torch nor transformers; what is exported here is loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmspec.core.decoder import Decoder as Decoder
    from mmspec.core.laws import Law as Law
    from mmspec.core.types import Draft as Draft
    from mmspec.faces.custom_generate import custom_generate as custom_generate
    from mmspec.faces.enable import disable as disable
    from mmspec.faces.enable import enable as enable
    from mmspec.faces.pipeline import Pipeline as Pipeline
    from mmspec.registry import Component as Component
    from mmspec.registry import hookimpl as hookimpl

__version__ = "0.1.0"

_HOMES = {
    "Component": "mmspec.registry",
    "Decoder": "mmspec.core.decoder",
    "Draft": "mmspec.core.types",
    "Law": "mmspec.core.laws",
    "Pipeline": "mmspec.faces.pipeline",
    "custom_generate": "mmspec.faces.custom_generate",
    "disable": "mmspec.faces.enable",
    "enable": "mmspec.faces.enable",
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
