"""Entries of configs of heads: which of them the reference takes, which change nothing, and what messages call them."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from transformers import GenerationConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from mmspec_text.drafters.heads.mtp.checkpoint import COUNTS
from tests.draws.claim import Case
from tests.draws.head_kinds import KINDS

NAMES: Mapping[str, tuple[str, ...]] = {
    "attention_bias": ("bias",),
    "clover": ("num_heads", "num_layers"),
    "biases": ("bias",),
    "embedding": ("embed_tokens",),
    "conv_kernel_size": ("conv",),
    "draft_vocab_size": ("d2t",),
    "fc_norm": ("fc_norm.", "aux_norm"),
    "head_dim": ("heads",),
    "hidden_act": ("activations",),
    "hidden_activation": ("activations",),
    "layer_types": ("sliding_window",),
    "layers": ("layers.",),
    "markov_head_type": ("markov_head",),
    "markov_rank": ("markov_head",),
    "mask_token_id": ("mask token",),
    "norm_before_fc": ("input_norm",),
    "parallel_drafting": ("P-EAGLE",),
    "num_attention_heads": ("head_dim", "heads"),
    "num_key_value_heads": ("head_dim", "heads"),
    "original_lm_head": ("lm_head",),
    "rope_parameters": ("rotary", "max_position_embeddings"),
    "rope_scaling": ("rotary", "max_position_embeddings"),
    "tie_weights": ("head.", "emb."),
    "target_hidden_size": ("fc_norm", "states of "),
    "use_aux_hidden_state": ("fc.weight", "hidden_norm"),
    "use_aux_norm": ("aux_norm", "fc_norm"),
    "swa_window_size": ("sliding_window",),
    "use_swa": ("sliding_window",),
    "vocab_size": (" ids", "lm_heads", "markov", "vocabulary", "codebook", "embed_proj"),
    "whole": ("ids", "lm_head"),
}
"""What else a message may call an entry: parts that it asks for."""
TRAINING = frozenset(
    {
        *("add_cross_attention", "cross_attention_hidden_size", "is_decoder", "tie_encoder_decoder"),
        *("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "auto_map", "base_model_name_or_path"),
        *("confidence_head_alpha", "decay_coefficient", "decoder_sparse_step", "draft_num_hidden_layers"),
        *("eagle_decoder_type", "embed_requires_grad", "heads_coefficient", "initializer_range", "loss_decay_gamma"),
        *("model_type", "n_candidates", "num_anchors", "num_lookahead_tokens", "num_target_layers", "pretraining_tp"),
        *("sep_token_id", "speculators_version", "step_loss_decay", "target_model_name_or_path", "target_model_type"),
        *("top_k_tokens_per_head", "torch_dtype", "ttt_length", "ttt_step_loss_decay", "ttt_steps", "verifier"),
        "version",
    }
)
"""Entries of training, and of what a file is."""
READ = frozenset(
    {
        *("conv_group_size", "conv_kernel_size", "pure_draft_prefix_len", "selector_top_k"),
        *("block_size", "causal", "causal_head", "clover", "draft_vocab_size", "dspark_bonus_anchor", "fc_norm"),
        *(
            "final_logit_softcapping",
            "kv_lora_rank",
            "q_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
        ),
        *("rope_interleave", "head_dim", "hidden_act", "hidden_activation", "hidden_size"),
        *("input_embedding_scale", "intermediate_size", "is_causal", "k_mask", "layer_types", "logit_scale"),
        *("markov_head_type", "mask_token_id", "max_position_embeddings", "max_window_layers"),
        *("medusa_num_heads", "medusa_num_layers", "n_predict", "norm_before_fc", "norm_before_residual"),
        *("norm_output", "num_attention_heads", "num_heads", "num_hidden_layers", "num_key_value_heads"),
        *("num_layers", "original_max_position_embeddings", "output_multiplier", "rms_norm_eps", "rope_parameters"),
        *("rope_scaling", "rope_theta", "sample_from_anchor", "scale_input", "shift_label", "sliding_window"),
        *("sliding_window_non_causal", "swa_window_size", "tie_weights", "tie_word_embeddings", "use_aux_norm"),
        *("use_aux_hidden_state", "use_sliding_window", "use_swa", "vocab_size", "attention_bias", "mlp_bias"),
        *("bias", "fusion_bias", "mask_token", "pard_token", "partial_rotary_factor", "ptd_token_id", "qkv_bias"),
        *COUNTS,
        *("hydra_num_heads", "hydra_num_layers", "parallel_drafting", "original_lm_head", "truncated_vocab_size"),
    }
)
"""Entries that the reference takes, or of which the tensors tell."""
CHANGING = (
    *("attention_bias", "hidden_act", "logit_scale", "norm_before_fc", "norm_before_residual", "norm_output"),
    *("rms_norm_eps", "tie_word_embeddings"),
)
"""Entries that change the numbers of many heads, which are drawn more often."""
PLAIN: Mapping[str, Any] = {
    **dict.fromkeys(("logits_scaling", "embedding_multiplier", "residual_multiplier", "scale_emb"), 1),
    **dict.fromkeys(("is_neox_style", "next_layer_regular"), True),
    **dict.fromkeys(("rope_interleave", "use_mtp_layernorm"), False),
}
"""Entries that no reference takes, and their values for what every reference computes."""
REMOTE: Mapping[str, Any] = {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256, "mup_denominator": 32}
"""Entries of configuration classes that are not in transformers: MiniCPM's."""
FEATURES = frozenset({"target_layer_ids", "aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids"})
"""Entries that say which of the target's states are read, which no logits of given features show."""
OF_ALL = frozenset({*PreTrainedConfig().to_dict(), *GenerationConfig().to_dict()} - {"tie_word_embeddings"})
"""Entries of all configs, and of generation."""


@cache
def universe() -> Mapping[str, Any]:
    """The entries that configuration classes of language models have, by asking them, with a value of each."""
    found: dict[str, Any] = dict(REMOTE)
    for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            entries = CONFIG_MAPPING[name]().to_dict()
        except Exception:  # some cannot be made of nothing
            continue
        for key, value in entries.items():
            if value is not None and not isinstance(value, Mapping) and key not in ("architectures", "model_type"):
                found.setdefault(key, value)
    return dict(sorted(found.items()))


def is_named(key: str, case: Case, said: str) -> bool:
    """Whether a message names what is otherwise: the entry, a part of its value, or the tensor."""
    first, _, rest = key.partition(".")
    name, value, kind = rest.split(".")[-1], case[key], KINDS[case["head"]]
    words = [name, *NAMES.get(name, ())]
    if key == "tensor.lack":
        words = [
            " missing",
            "no weights",
            " fit",
            "nothing reads",
            "has no ",
            "lacks ",
            "there is no ",
            "its file has ",
            kind.named(value),
        ]
    elif first == "tensor":
        words = ["nothing reads", "without a place", str(value), *kind.copies, *kind.may_repeat]
    elif isinstance(value, Mapping):
        words += [str(part) for part in value]
    elif isinstance(value, str):
        words.append(repr(value))
    return any(word in said for word in words)
