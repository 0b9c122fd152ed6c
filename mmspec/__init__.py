"""mmspec: speculative decoding beyond text.

Importing this package imports neither torch nor transformers; what is exported here is loaded on first use. Authors of
plugins find what they need in `mmspec.authors`.
"""

from typing import TYPE_CHECKING

from mmspec.lazy import lazily

if TYPE_CHECKING:
    from mmspec.api.custom_generate import custom_generate as custom_generate
    from mmspec.api.enable import disable as disable
    from mmspec.api.enable import enable as enable
    from mmspec.api.pipeline import Pipeline as Pipeline
    from mmspec.api.prompt_enhancer import PromptEnhancer as PromptEnhancer
    from mmspec.api.rows import Rows as Rows
    from mmspec.core.decoder import Decoder as Decoder
    from mmspec.core.distributions import Distribution as Distribution
    from mmspec.core.grammar import Grammar as Grammar
    from mmspec.core.learning import Learning as Learning
    from mmspec.core.topics import Topics as Topics
    from mmspec.core.types import Draft as Draft
    from mmspec.kits.pictures.adaptive_negative import AdaptiveNegative as AdaptiveNegative
    from mmspec.registry import AdapterSpec as AdapterSpec
    from mmspec.registry import DefaultMethod as DefaultMethod
    from mmspec.registry import DrafterSpec as DrafterSpec
    from mmspec.registry import MethodSpec as MethodSpec
    from mmspec.registry import PolicySpec as PolicySpec
    from mmspec.registry import RuleSpec as RuleSpec
    from mmspec.registry import TargetSpec as TargetSpec
    from mmspec.registry import hookimpl as hookimpl

__version__ = "0.1.0"

_HOMES = {
    "AdaptiveNegative": "mmspec.kits.pictures.adaptive_negative",
    "AdapterSpec": "mmspec.registry",
    "Decoder": "mmspec.core.decoder",
    "DefaultMethod": "mmspec.registry",
    "Distribution": "mmspec.core.distributions",
    "Draft": "mmspec.core.types",
    "DrafterSpec": "mmspec.registry",
    "Grammar": "mmspec.core.grammar",
    "Learning": "mmspec.core.learning",
    "MethodSpec": "mmspec.registry",
    "Pipeline": "mmspec.api.pipeline",
    "PolicySpec": "mmspec.registry",
    "PromptEnhancer": "mmspec.api.prompt_enhancer",
    "Rows": "mmspec.api.rows",
    "RuleSpec": "mmspec.registry",
    "TargetSpec": "mmspec.registry",
    "Topics": "mmspec.core.topics",
    "custom_generate": "mmspec.api.custom_generate",
    "disable": "mmspec.api.enable",
    "enable": "mmspec.api.enable",
    "hookimpl": "mmspec.registry",
}
__getattr__, __dir__ = lazily(__name__, _HOMES, "__version__")
