"""What the host has to know of a live model, and the models that it cannot take: read off the config.

A model that passes here may still be refused by the self-check; this page names the reasons that are known beforehand.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import (
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from mmspec.core.refusal import OutOfScopeError
from mmspec.hosts.dispatch import called_functions, mixers, replaced_forwards
from mmspec.hosts.tree_op import TreeOp

_RECURRENT = (
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)
_STORING_NOTHING = frozenset({"DummyLayer"})


@dataclass(frozen=True)
class Anatomy:
    """A decoder as the host sees it.

    Attributes:
        model: The live model, wrappers taken off.
        config: Of its language part.
        vocab: Number of token ids.
        context: Most positions that it was made for; None: no end.
        reach: Positions beyond which it computes something else than in small steps, so that such calls are refused.
        why: What happens there.
        by_slot: Whether it is the cache's slots that count, not positions.
        table: Whether positions are looked up in a table, which ends at `context`.
        ops: What the functions of its recurrent layers are over a tree, by name; empty where it has none.
    """

    model: Any
    config: Any
    vocab: int
    context: int | None
    reach: int | None
    why: str
    by_slot: bool
    table: bool
    ops: Mapping[str, TreeOp] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, ops: Mapping[str, TreeOp] | None = None) -> "Anatomy":
        """Look at a model.

        Args:
            model: It.
            ops: The tree operations that plugins declare.

        Raises:
            ValueError: It cannot be speculated over; says why.
        """
        model, ops = unwrapped(model), ops or {}
        _refuse(model, ops)
        config = model.config.get_text_config(decoder=True)
        context = getattr(config, "max_position_embeddings", None)
        reach, why, by_slot = min(_limits(config), key=lambda limit: limit[0], default=(None, "", False))
        table = context is not None and _has_position_table(model)
        own = ops if recurrent_in(model) else {}
        return cls(model, config, config.vocab_size, context, reach, why, by_slot, table, own)

    def layers(self) -> list[Any]:
        """transformers' own cache layers, empty."""
        return list(DynamicCache(config=self.model.config).layers)


def unwrapped(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper; its forward includes the adapters.

    Raises:
        ValueError: The wrapper adds units of its own, or hides the model's forward.
    """
    if hasattr(model, "_orig_mod"):
        raise ValueError(
            "this is a torch.compile wrapper, whose generate does not run compiled; pass the model itself, "
            "after compiling it in place with model.compile()"
        )
    adapters = getattr(model, "peft_config", None)
    if not hasattr(model, "get_base_model") or not isinstance(adapters, dict):
        return model
    if any(getattr(adapter, "is_prompt_learning", False) for adapter in adapters.values()):
        raise ValueError("PEFT prompt learning puts units of its own before the prompt; merge it, or use LoRA")
    return model.get_base_model()


def recurrent_in(model: Any) -> bool:
    """Whether some layer of a model keeps a state in transformers' cache."""
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in DynamicCache(config=model.config).layers)


def _refuse(model: Any, ops: Mapping[str, TreeOp]) -> None:
    config = model.config
    kind = getattr(config, "model_type", type(model).__name__)
    if getattr(config, "is_encoder_decoder", False):
        raise OutOfScopeError(f"{kind!r} is an encoder–decoder; only decoders can be speculated over")
    if not hasattr(model, "can_generate") or not model.can_generate():
        raise ValueError(f"{type(model).__name__} cannot generate; load it with AutoModelForCausalLM")
    try:
        layers = DynamicCache(config=config).layers
    except Exception as error:  # configs that transformers itself has no cache for
        raise ValueError(f"{kind!r} has no key-value cache that transformers can make ({error})") from error
    recurrent = any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)
    if recurrent and not ops:
        raise ValueError(f"{kind!r} is recurrent: no installed plugin can roll its state back over a refused draft")
    if (recurrent or _stateful(model)) and not mixers(model):
        raise ValueError(
            f"{kind!r} is recurrent and keeps its state elsewhere than in a cache of transformers: a refused draft "
            "could not be taken out of it"
        )
    if recurrent:
        _refuse_recurrent(model, kind, ops)
    strange = {
        type(layer).__name__ for layer in layers if type(layer) not in _RECURRENT and not _holds_keys_alone(layer)
    }
    if strange:
        raise ValueError(f"{kind!r} keeps more than keys and values ({', '.join(sorted(strange))})")
    if not getattr(config.get_text_config(decoder=True), "vocab_size", None):
        raise ValueError(f"{kind!r} has no vocabulary size in its config")


def _refuse_recurrent(model: Any, kind: str, ops: Mapping[str, TreeOp]) -> None:
    """What stands in the way of computing its recurrent layers over a tree."""
    replaced = replaced_forwards(model)
    if replaced:
        raise ValueError(
            f"{kind!r}: the forward of {replaced[0]} was replaced, as use_kernels=True does; its operations cannot be "
            "run over a tree. Load the model without it"
        )
    if model.__dict__.get("_compiled_call_impl") is not None:
        raise ValueError(f"{kind!r} is recurrent and was compiled in place; its operations cannot be run over a tree")
    declared, others = called_functions(model, ops)
    if not declared:
        raise ValueError(
            f"{kind!r} is recurrent, and no plugin says what its operations are over a tree: {', '.join(others)}. A "
            "plugin declares one with the hook mmspec_tree_ops"
        )


def _has_position_table(model: Any) -> bool:
    tables = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Embedding)]
    own = [name for name in tables if not any(sense in name for sense in ("vision", "visual", "image", "audio"))]
    return any("pos" in last or last == "wpe" for last in (name.rpartition(".")[2] for name in own))


def _stateful(model: Any) -> bool:
    """Whether some layer keeps a state that is no cache of keys; hybrids may be built of attention alone."""
    kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ["unknown"]
    attention = all("attention" in kind and "linear" not in kind for kind in kinds)
    return bool(getattr(model, "_is_stateful", False)) and not attention


def _holds_keys_alone(layer: Any) -> bool:
    """Keys and values, or nothing; an indexed layer is one of keys with something beside them."""
    keys = isinstance(layer, DynamicLayer) and not hasattr(layer, "update_indexer")
    return keys or type(layer).__name__ in _STORING_NOTHING


def _limits(config: Any) -> Iterator[tuple[int, str, bool]]:
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(nested for nested in rope.values() if isinstance(nested, dict))]
    for parameters in kinds:
        if parameters.get("rope_type") == "longrope":
            original = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
            yield original, "long-rope switches its frequencies there, for the whole batch and all of a draft", False
        elif "dynamic" in (parameters.get("rope_type") or ""):
            yield config.max_position_embeddings, "dynamic rope rescales its frequencies there, pass by pass", False
    if getattr(config, "attn_temperature_tuning", False) and getattr(config, "floor_scale", None):
        # Below floor_scale the temperature is 1; beyond, Llama 4 takes it from the cache's length, not from positions.
        yield config.floor_scale - 1, "attention temperature follows the cache's length there, not a depth", True
