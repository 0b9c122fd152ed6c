"""Arguments of `generate` that speculation does not support: refused by name before anything runs, never ignored.

Settings that say how much transformers' own assistants draft change no output; they are named in a warning.
"""

from collections.abc import Collection, Mapping
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from mmspec.core.refusal import OutOfScopeError
from mmspec.hosts.export import refuse_foreign
from mmspec.registry.warn import warn

_REFUSED = {
    "constraints": "has no constrained beams",
    "force_words_ids": "has no constrained beams",
    "penalty_alpha": "has no contrastive search",
    "dola_layers": "has no DoLa",
    "output_attentions": "keeps no attentions",
    "output_hidden_states": "keeps no hidden states",
    "prompt_lookup_num_tokens": "is the speculation itself; use the method prompt-lookup",
    "speculation_type": "is the speculation itself; name a method, such as dflash",
    "assistant_ensemble_weight": "keeps the target's distribution; rules that do not are named with rule=",
    "assistant_early_exit": "is the speculation itself, and has no early exit",
    "use_mtp": "is the speculation itself, and does not use the model's own heads here",
    "token_healing": "passes the prompt on as it is",
}
ASKED = "num_assistant_tokens"
_NO_EFFECT = (
    ASKED,
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "max_matching_ngram_size",
    "assistant_lookbehind",
    "target_lookbehind",
)
_REFUSED_ARGUMENTS = ("assistant_model", "assistant_tokenizer", "custom_generate", "synced_gpus")
_REFUSED_CACHES = ("quantized", "offloaded", "paged")
CACHE_ARGUMENTS = ("past_key_values", "cache_params")
"""The argument of `generate` that takes a cache; the second name is that of models which keep states, not keys."""


def refuse_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of `generate` that are not part of a generation configuration.

    Raises:
        OutOfScopeError: Names the argument.
    """
    for name in _REFUSED_ARGUMENTS:
        if arguments.get(name) not in (None, False):
            raise OutOfScopeError(f"{name}= cannot be combined with mmspec.enable; call disable() first")


def refuse_settings(config: GenerationConfig | Mapping[str, Any]) -> None:
    """Refuse settings of a generation configuration, or arguments that will become part of one.

    Raises:
        OutOfScopeError: Names the setting.
    """

    def setting(name: str) -> Any:
        return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)

    beams = setting("num_beams")
    if beams not in (None, 1):
        raise OutOfScopeError(
            f"num_beams={beams!r}: beam search is not speculative; call disable() first, or use num_beams=1"
        )
    for name, why in _REFUSED.items():
        if setting(name):
            raise OutOfScopeError(f"{name}={setting(name)!r} is not supported here: mmspec {why}")
    cache = setting("cache_implementation") or ""
    if any(word in cache for word in _REFUSED_CACHES):
        raise OutOfScopeError(f"cache_implementation={cache!r} is not supported here: mmspec keeps its own cache")


def warn_of_no_effect(config: GenerationConfig, read: Collection[str] = ()) -> None:
    """Warn of settings for transformers' own assistants that differ from its defaults, which prepared ones have.

    Args:
        config: A call's prepared configuration, or that of a draft model.
        read: Settings that are read.
    """
    usual, given = GenerationConfig._get_default_generation_params(), config.to_dict()
    names = [name for name in _NO_EFFECT if name not in read and given.get(name) not in (None, usual.get(name))]
    said = [f"{name}={given[name]!r}" for name in names]
    if said:
        warn(
            f"{', '.join(said)} {'have' if len(said) > 1 else 'has'} no effect under mmspec, which reads k= (how much "
            "is drafted), policy= (a length that changes) and the drafter's own options, all of mmspec.enable"
        )


def asked_tokens(model: Any) -> int | None:
    """Units per draft that a live draft model's own configuration asks for, where transformers reads them, too.

    There is one warning about its other settings of assisted generation, which have no effect.
    """
    if not isinstance(model, PreTrainedModel) or model.generation_config is None:
        return None
    warn_of_no_effect(model.generation_config, read=(ASKED,))
    asked = model.generation_config.num_assistant_tokens
    return asked if isinstance(asked, int) and asked > 0 else None


def refuse_inputs(arguments: Mapping[str, Any]) -> None:
    """Refuse a cache that comes with the prompt and can be neither read nor filled.

    Raises:
        OutOfScopeError: Names the argument and the kind of cache.
    """
    for name in CACHE_ARGUMENTS:
        if arguments.get(name) is not None:
            refuse_foreign(name, arguments[name])
