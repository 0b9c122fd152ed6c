"""Facts about a live model that the host needs, read from its config, and the models that it refuses because of them.

A model that passes these checks may still be refused by the self-check (`mmspec.hosts.self_check`).
"""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
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
_KEYS = vars(DynamicSlidingWindowLayer(sliding_window=1)).keys() | vars(DynamicLayer()).keys()
"""Attributes of transformers' cache layers that hold keys and values alone, with a window or without."""
_EMPTY_LAYERS = frozenset({"DummyLayer"})  # transformers' cache layers that store nothing
_LENGTHS = re.compile(
    r"(?<!max_)window(?!.*(layer|pattern))|floor|attention_chunk|local_att|(?<!_)block_size|max_distance"
)
_ORIGINAL = "original_max_position_embeddings"
OTHER_SENSES = ("vision", "visual", "image", "audio")
"""Parts of a module's name that say that its layers do not read the text."""


@dataclass(frozen=True)
class LanguagePart:
    """The part of a model that reads text."""

    layers: Sequence[nn.Module]  # its layers, in order
    decoder: nn.Module  # what turns ids into states, final norm included, without the output layer

    @property
    def final_norm(self) -> nn.Module:
        """The module that turns the last layer's states into those that the output layer reads."""
        norms = [child for child in self.decoder.children() if "norm" in type(child).__name__.lower()]
        if not norms:
            raise ValueError(f"{type(self.decoder).__name__} has no norm behind its layers, which exits would share")
        return norms[-1]

    @classmethod
    def of(cls, model: Any, count: int) -> "LanguagePart":
        """Find the part in a model of so many layers, by a walk over all of its modules; refuses where layers cannot be
        told from its other parts.
        """
        lists = [
            (name, module)
            for name, module in model.named_modules()
            if isinstance(module, nn.ModuleList) and not any(sense in name for sense in OTHER_SENSES)
        ]
        exact = [found for found in lists if len(found[1]) == count]
        blocks = [found for found in lists if found[0].endswith(".layers") and found[0].count(".") == 1]  # of two parts
        if not exact + blocks:
            raise ValueError(
                f"{type(model).__name__} has no list of its {count} layers, so that no drafter can read its hidden "
                "states; use a method that needs none"
            )
        name, layers = min(exact or blocks, key=lambda found: found[0].count("."))
        part = model.get_decoder()
        inside = isinstance(part, nn.Module) and part is not model and any(m is layers for m in part.modules())
        # Some models name another part as their decoder, or themselves.
        return cls(list(layers), part if inside else model.get_submodule(name.rpartition(".")[0]))


@dataclass(frozen=True)
class ModelInfo:
    """A decoder-only model as the host sees it."""

    model: Any  # the live model without its PEFT wrapper
    config: Any  # the config of the model's language part
    vocab: int  # the number of token ids
    context: int | None  # the most positions that the model was made for; None if it has no limit
    # The position beyond which a pass over several tokens computes something else than one pass per token; calls that
    # go beyond it are refused. None if there is no such position.
    reach: int | None
    reach_reason: str  # what happens beyond `reach`, for the error message
    # The most columns in which rows of a batch, or a padded one, can be verified: beyond them a layer counts columns,
    # the same of all rows. None if there is no limit.
    together: int | None
    position_table: bool  # whether positions are looked up in an embedding table, which ends at `context`
    # The tree operations of the model's recurrent layers, by the name of the function that they replace; empty if the
    # model has no recurrent layer
    ops: Mapping[str, TreeOp] = field(default_factory=dict)
    # Whether the target gives the positions of new units in a table (`SlotCache.places`), because they do not go on by
    # one.
    placed: bool = False
    # What was found of the model as it was at the latest call: its passes, beside what they hold for
    latest: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of(cls, model: Any, ops: Mapping[str, TreeOp] | None = None) -> "ModelInfo":
        """The facts about a model, with the tree operations that plugins declare; refuses a model with which drafts
        cannot be verified.
        """
        model, ops = unwrapped(model), ops or {}
        _refuse(model, ops)
        config = model.config.get_text_config(decoder=True)
        context = getattr(config, "max_position_embeddings", None)
        reach, reason = min(_limits(config), key=lambda limit: limit[0], default=(None, ""))
        table = context is not None and _has_position_table(model)
        own_ops = ops if has_recurrent_layers(model) else {}
        return cls(model, config, config.vocab_size, context, reach, reason, _together(config), table, own_ops)

    @property
    def has_experts(self) -> bool:
        """True if layers choose among experts: such products may round by how many units an expert gets."""
        return _counts_experts(self.config.to_dict())

    @property
    def reads_both_ways(self) -> bool:
        """True if a prompt's units may attend to later ones, as `token_type_ids` say: a prefix of zeros (PaliGemma).

        Such a prompt is read by the model's own prefill; what is written behind it attends backwards alone.
        """
        asked = getattr(self.config, "use_bidirectional_attention", None) is True
        return asked and "token_type_ids" in inspect.signature(type(self.model).forward).parameters

    @cached_property
    def language(self) -> LanguagePart:
        """The part that reads text; found once, since a model with experts has many thousands of modules."""
        return LanguagePart.of(self.model, self.config.num_hidden_layers)

    def layers(self) -> list[Any]:
        """Empty cache layers as transformers makes them for this model."""
        return list(DynamicCache(config=self.model.config).layers)


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Settings of transformers that count a layer's experts."""


def _counts_experts(settings: Mapping[str, Any]) -> bool:
    """True if a configuration, or a part of it (DBRX), has experts."""
    inner = [value for value in settings.values() if isinstance(value, dict)]
    return any(settings.get(name) for name in EXPERTS) or any(map(_counts_experts, inner))


def unwrapped(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper; its forward includes the adapters. Refuses virtual tokens before
    the prompt, and a `torch.compile` wrapper.
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


def has_recurrent_layers(model: Any) -> bool:
    """True if transformers' cache for a model has a layer with a recurrent or convolution state."""
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in DynamicCache(config=model.config).layers)


def _refuse(model: Any, ops: Mapping[str, TreeOp]) -> None:
    config = model.config
    _refuse_whole_graphs(model)
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
    unsupported = {
        type(layer).__name__ for layer in layers if type(layer) not in _RECURRENT and not _holds_keys_alone(layer)
    }
    if unsupported:
        kept = ", ".join(sorted(unsupported))
        raise ValueError(f"{kind!r} keeps more than keys and values ({kept}), which a refused draft would stay in")
    if not getattr(config.get_text_config(decoder=True), "vocab_size", None):
        raise ValueError(f"{kind!r} has no vocabulary size in its config")


def _refuse_whole_graphs(model: Any) -> None:
    """Refuse a model with a part that was compiled into one graph: passes over drafts break the graph."""
    for name, module in model.named_modules():
        own = vars(module)
        compiled = [own.get("_compiled_call_impl"), own.get("forward")]
        cells = [cell.cell_contents for each in compiled for cell in getattr(each, "__closure__", None) or ()]
        if any(getattr(each, "fullgraph", False) is True for each in (own.get("dynamo_ctx"), *cells)):
            part = f"its {name}" if name else "it"
            raise ValueError(
                f"{type(model).__name__} cannot be used while {part} is compiled with fullgraph=True, since passes over"
                " drafts break the graph: pass the uncompiled module; compile=True then compiles whole rounds"
            )


def _refuse_recurrent(model: Any, kind: str, ops: Mapping[str, TreeOp]) -> None:
    replaced = replaced_forwards(model)
    if replaced:
        raise ValueError(
            f"{kind!r}: the forward of {replaced[0]} was replaced, as use_kernels=True does; its operations cannot be "
            "run over a tree. Load the model without it"
        )
    declared, undeclared = called_functions(model, ops)
    if not declared:
        raise ValueError(
            f"{kind!r} is recurrent, and no plugin says what its {type(mixers(model)[0]).__name__} computes over a "
            f"tree: it calls {', '.join(undeclared) or 'no functions'}, which a plugin could declare with the hook "
            "mmspec_tree_ops, unlike what the layer computes itself"
        )


def _has_position_table(model: Any) -> bool:
    """True if the language part has an embedding of positions, judged by the names of its embeddings."""
    tables = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Embedding)]
    text = [name for name in tables if not any(sense in name for sense in OTHER_SENSES)]
    return any("pos" in last or last == "wpe" for last in (name.rpartition(".")[2] for name in text))


def _stateful(model: Any) -> bool:
    """True if some layer keeps a recurrent state; a hybrid architecture may be configured with attention alone."""
    kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ["unknown"]
    attention = all("attention" in kind and "linear" not in kind for kind in kinds)
    return bool(getattr(model, "_is_stateful", False)) and not attention


def _holds_keys_alone(layer: Any) -> bool:
    """True if an empty cache layer will hold keys and values, or nothing; an indexed one has a place for more."""
    return (isinstance(layer, DynamicLayer) and vars(layer).keys() <= _KEYS) or type(layer).__name__ in _EMPTY_LAYERS


def _limits(config: Any) -> Iterator[tuple[int, str]]:
    """Candidates for `ModelInfo.reach` and `reach_reason`."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(nested for nested in rope.values() if isinstance(nested, dict))]
    for parameters in kinds:
        if parameters.get("rope_type") == "longrope":
            original = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
            yield original, "long-rope switches its frequencies there, for the whole batch and all of a draft"
        elif "dynamic" in (parameters.get("rope_type") or ""):
            yield config.max_position_embeddings, "dynamic rope rescales its frequencies there, pass by pass"
    kept, window = getattr(config, "keep_window_size", None), getattr(config, "sliding_window", None)
    if kept and (window or kept + 1) > kept:
        yield kept, "of units that its layers rate alike (a repeated one) the shape of a pass says which stay"


def _together(config: Any) -> int | None:
    """`ModelInfo.together`: the temperature of Llama 4's attention is 1 up to there, and follows columns behind it."""
    return int(getattr(config, "floor_scale", 0)) or None if getattr(config, "attn_temperature_tuning", False) else None


def cache_name(model: Any) -> str:
    """The argument in which the model's forward takes its cache."""
    return "cache_params" if names_argument(model, "cache_params") else "past_key_values"


def accepts_argument(model: Any, argument: str) -> bool:
    """True if the model's forward names an argument or has `**kwargs`."""
    kind: Any = type(model)
    return names_argument(model, argument) or _arguments(kind)[1]


def names_argument(model: Any, argument: str) -> bool:
    """True if the model's forward names an argument; `generate` passes positions only to such models."""
    kind: Any = type(model)
    return argument in _arguments(kind)[0]


@lru_cache(maxsize=64)
def _arguments(kind: Any) -> tuple[frozenset[str], bool]:
    """The arguments of a class's forward, and whether it has `**kwargs`; cached, because every pass asks."""
    parameters = inspect.signature(kind.forward).parameters
    return frozenset(parameters), any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def lengths(model_info: ModelInfo) -> dict[int, str]:
    """The lengths of texts from which on a model may do something else, and the settings that say so; what positions
    decide, where they are an argument, is checked at positions.
    """
    settings = {**(getattr(model_info.config, "rope_parameters", None) or {}), **model_info.config.to_dict()}
    counted = not names_argument(model_info.model, "position_ids")
    named = [name for name in settings if _LENGTHS.search(name) or (counted and name == _ORIGINAL)]
    return {settings[name]: name for name in named if type(settings[name]) is int and settings[name] > 0}
