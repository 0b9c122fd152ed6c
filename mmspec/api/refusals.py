"""What `generate` offers and speculation does not: refused by name before anything runs, never silently ignored."""

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig

from mmspec.core.refusal import OutOfScopeError
from mmspec.hosts.export import refuse_foreign

_REFUSED = {
    "constraints": "has no constrained beams",
    "force_words_ids": "has no constrained beams",
    "penalty_alpha": "has no contrastive search",
    "dola_layers": "has no DoLa",
    "output_attentions": "keeps no attentions",
    "output_hidden_states": "keeps no hidden states",
    "prompt_lookup_num_tokens": "is the speculation itself; use the method prompt-lookup",
    "assistant_early_exit": "is the speculation itself, and has no early exit",
    "use_mtp": "is the speculation itself, and does not use the model's own heads here",
    "token_healing": "passes the prompt on as it is",
}
_OURS = ("assistant_model", "assistant_tokenizer", "custom_generate", "synced_gpus")
_CACHES = ("quantized", "offloaded", "paged")


def refuse_arguments(given: Mapping[str, Any]) -> None:
    """Refuse arguments of `generate` that its configuration does not hold.

    Raises:
        OutOfScopeError: Names the argument.
    """
    for name in _OURS:
        if given.get(name) not in (None, False):
            raise OutOfScopeError(f"{name}= cannot be combined with mmspec.enable; call disable() first")


def refuse_settings(config: GenerationConfig | Mapping[str, Any]) -> None:
    """Refuse settings of a generation configuration, or of the arguments that will go into one.

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
    if any(word in cache for word in _CACHES):
        raise OutOfScopeError(f"cache_implementation={cache!r} is not supported here: mmspec keeps its own cache")


def refuse_inputs(given: Mapping[str, Any]) -> None:
    """Refuse what comes along with the prompt: a cache that can be neither read nor filled.

    Raises:
        OutOfScopeError: Names the argument and the kind of cache.
    """
    for name in ("past_key_values", "cache_params"):  # models without keys call it so
        if given.get(name) is not None:
            refuse_foreign(name, given[name])
