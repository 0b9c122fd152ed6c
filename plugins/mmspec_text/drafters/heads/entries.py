"""The entries of a head's config: those that are read, that change nothing, that ask for what is not computed.

An entry that changes numbers is read, or refused by name; one that is neither read nor known as harmless is named in a
warning. What tensors show is compared with the file (`agree`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import GenerationConfig, LlamaConfig, PreTrainedConfig

from mmspec.registry.printable import shown
from mmspec.registry.warn import warn
from mmspec_text.drafters.heads.values import architectures

FACTORS = ("embedding_multiplier", "input_embedding_scale", "logit_scale", "logits_scaling", "output_multiplier")
NORMS = ("use_input_layernorm_in_first_layer", "use_last_layernorm")
PLAIN = {
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar")),
    **dict.fromkeys(("attention_multiplier", "scale_depth")),
    **dict.fromkeys((*FACTORS, "partial_rotary_factor", "residual_multiplier", "scale_emb"), 1),
    **dict.fromkeys(("is_neox_style", "next_layer_regular", *NORMS), True),
    **dict.fromkeys(("rope_interleave", "use_mtp_layernorm"), False),
    "attention_mode": "gqa",
}
"""Entries of configs that no tensor shows, and their values for the layers that are computed: a turn of halves and of
all numbers, attention scaled by the width of a head alone, no factors. A family may read some of them."""
HARMLESS = frozenset(
    {
        *PreTrainedConfig().to_dict(),
        *GenerationConfig().to_dict(),
        *("add_cross_attention", "attention_dropout", "auto_map", "base_model_name_or_path", "clover"),
        *("confidence_head_alpha", "cross_attention_hidden_size", "decoder_sparse_step", "dflash_config"),
        *("draft_num_hidden_layers", "dspark_config", "eagle_config", "eagle_decoder_type", "embed_requires_grad"),
        *("enable_confidence_head", "finetuning_task", "has_lm_head", "has_no_defaults_at_init", "head_dim"),
        *("initializer_range", "input_type", "is_decoder", "markov_rank", "max_window_layers", "num_anchors"),
        *("num_key_value_heads", "num_target_layers", "prefix", "pretraining_tp", "pruned_heads", "selector_rank"),
        *("sep_token_id", "sliding_window_non_causal", "speculators_config", "speculators_model_type"),
        *("speculators_version", "step_loss_decay", "target_model_name_or_path", "target_model_type"),
        *("task_specific_params", "tf_legacy_loss", "tie_encoder_decoder", "tie_word_embeddings", "tokenizer_class"),
        *("torch_dtype", "torchscript", "transformer_layer_config", "ttt_length", "ttt_step_loss_decay", "ttt_steps"),
        *("use_bfloat16", "use_sliding_window", "verifier", "version", "vocab_size"),
    }
)
"""Entries that change no number of a head: of what the file is, of generation, of training; parts, whose own entries
are read; shapes, which tensors show; and what is read where the part is there that it is about."""
OF_LAYERS = (*LlamaConfig().to_dict(), "rope_scaling", "rope_theta", "sliding_window")
"""Entries that change none of a head without decoder layers, whose config may be a whole language model's."""


class Entries(Mapping[str, Any]):
    """The entries of a head's config that are set, and which of them were asked for.

    They are those of several `parts`, if these are objects; the first ones win. Going through all asks for all.
    """

    def __init__(self, *parts: object) -> None:
        self._entries, self._asked, self._twice = dict[str, Any](), set[str](), set[str]()
        for key, value in (item for part in parts if isinstance(part, Mapping) for item in part.items()):
            if value is not None and self._entries.setdefault(key, value) != value:
                self._twice.add(key)

    def __getitem__(self, name: str) -> Any:
        self._asked.add(name)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def settle(self, what: str, *known: str) -> None:
        """Name the entries that nobody asked for; `known` ones of the family change nothing, or are parts of these."""
        left = {key: value for key, value in self._entries.items() if key not in self._asked}
        refuse_layers(left, what)
        if {"layer_types", "use_sliding_window"} & self._asked & self._entries.keys():
            known = *known, "sliding_window"  # all layers may be without one
        if unread := sorted((left.keys() - PLAIN.keys() | self._twice) - HARMLESS - {*known}):
            warn(f"{what}: entries of its config that are not read, or one of two: {shown(', '.join(unread))}")


def refuse_layers(given: Mapping[str, Any], what: str, plain: Mapping[str, Any] = PLAIN) -> None:
    """Refuse a head whose layers are of a family that is not computed, though they may have the same tensors."""
    for name in (*architectures(given), str(given.get("model_type") or "")):
        if "gemma" in name.lower():
            raise ValueError(
                f"{what} has layers of Gemma ({shown(name)}), with other norms and scales; the nearest that are "
                "computed are those of Llama and Qwen3"
            )
    for name, value in plain.items():
        if given.get(name) not in (None, value):
            raise ValueError(
                f"{what} has layers with {name} = {shown(repr(given[name]))}, which are not computed; the nearest that "
                "are, those of Llama and Qwen3, have none"
            )


def agree(given: Mapping[str, Any], found: Mapping[str, object], what: str) -> None:
    """Refuse a config that says something else than the file."""
    for name, value in found.items():
        if given.get(name) not in (None, value):
            raise ValueError(f"{what}: its config has {name} {shown(repr(given[name]))}, and its file has {value}")
