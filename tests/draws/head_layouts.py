"""Layouts of heads that are drawn beside those of `tests/support`: configs, and shapes of tensors."""

from typing import Any

from torch import Tensor

from tests.support import dflash_layouts, eagle_layouts
from tests.support.eagle_layouts import HEADS, PRUNED, TARGET, VOCAB, Stored, flags, layer, sizes

Weights = dict[str, Tensor]
Config = dict[str, Any]
VARIANTS = {
    "num_special_tokens": 3,
    "virtual_tokens_per_special_token": 1,
    "num_exits": 1,
    "use_custom_lm_head": False,
    "use_prefix_tuning": False,
    "vt_attention_type": "decoder",
}
"""Entries of the authors' `PromptConfig` that change what prompt tokens score."""
PROMPTS: Config = {
    **VARIANTS,
    **{"peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 3, "token_dim": TARGET},
    **{"aggregation_type": "mean", "prompt_tuning_init": "RANDOM", "prefix_virtual_tokens": None, "use_cache": True},
    **{"base_model_name_or_path": "someone/llama", "inference_mode": True, "num_layers": 6, "revision": None},
}
"""Entries that change nothing where there is one embedding for a prompt token, and those."""
LSTM = {
    **{f"lstm.weight_{part}_l{number}": (4 * TARGET, TARGET) for part in ("ih", "hh") for number in (0, 1)},
    **{f"lstm.bias_{part}_l{number}": (4 * TARGET,) for part in ("ih", "hh") for number in (0, 1)},
    "lstm.weight_ih_l0": (4 * TARGET, 2 * TARGET),
}
LATENT = {"kv_lora_rank": 6, "qk_nope_head_dim": 5, "qk_rope_head_dim": 8, "v_head_dim": 7, "q_lora_rank": 10}
ATTENTION = {
    "q_a_proj": (10, 2 * TARGET),
    "q_a_layernorm": (10,),
    "q_b_proj": (HEADS * 13, 10),
    "kv_a_proj_with_mqa": (14, 2 * TARGET),
    "kv_a_layernorm": (6,),
    "kv_b_proj": (HEADS * 12, 6),
    "o_proj": (TARGET, HEADS * 7),
}
FUSED = {key: size for key, size in eagle_layouts.third(TARGET).items() if "self_attn" not in key}
EAGLE = {
    **eagle_layouts.LAYOUTS,
    "torchspec": Stored(
        {key: value for key, value in sizes().items() if key not in ("head_dim", "num_key_value_heads")}
        | {**eagle_layouts.THIRD, **LATENT, "model_type": "kimi_k2"},
        eagle_layouts.under("midlayer."),
        flags(),
        {**FUSED, **{f"layers.0.self_attn.{key}.weight": size for key, size in ATTENTION.items()}},
    ),
    "deepspec": Stored(
        {**sizes(), "architectures": ["Qwen3Eagle3Model"], "ttt_length": 7, "target_layer_ids": [0, 1, 3]}
        | {"draft_vocab_size": PRUNED},
        lambda key: key,
        flags(),
        eagle_layouts.third(TARGET),
    ),
}
"""EAGLE's layouts, also with latent attention (TorchSpec), and DeepSpec's."""
GRU = {
    "prefix_gru.weight_ih_l0": (18, TARGET),
    "prefix_gru.weight_hh_l0": (18, 6),
    "embed_proj.0.weight": (5, TARGET + 6),
    "embed_proj.2.weight": (VOCAB, 5),
}
CONVOLUTIONS = {
    f"layers.{layer}.{part}_conv.{key}": size
    for layer in (0, 1)
    for part in ("attention", "mlp")
    for key, size in {"base_kernel": (2, 2, TARGET), "kernel_projection.weight": (16, TARGET)}.items()
}
SELECTOR = {
    **{f"candidate_selector.{part}_codebook": (VOCAB, 6) for part in ("predecessor", "successor")},
    "candidate_selector.hidden_projection.weight": (6, TARGET),
}
SECOND = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_top_k": 5, "selector_rank": 6}
DFLASH = {
    **dflash_layouts.LAYOUTS,
    "domino": dflash_layouts.stored(
        dflash_layouts.zlab(
            {"projector_type": "domino", "pure_draft_prefix_len": 1, "gru_hidden_dim": 6, "emb_dim": 5}
            | {"shift_label": True},
            architectures=["DominoDraftModel"],
        ),
        dflash_layouts.flags(from_root=True),
        {**dflash_layouts.shapes(), **GRU},
    ),
    "dflash2": dflash_layouts.stored(
        dflash_layouts.zlab(SECOND, architectures=["DFlash2DraftModel"]),
        dflash_layouts.flags(),
        {**dflash_layouts.shapes(), **CONVOLUTIONS, **SELECTOR},
    ),
    "jetspec": dflash_layouts.stored(
        dflash_layouts.zlab(causal_head=True), dflash_layouts.flags(), dflash_layouts.shapes()
    ),
}
"""DFlash's layouts, also Domino, DFlash2 and JetSpec's."""
FALCON = Stored(
    {**sizes(), "k_mask": 2},
    lambda key: key,
    flags(third=False),
    {**LSTM, **layer(0, TARGET, TARGET), "embed_tokens.weight": (VOCAB, TARGET)},
    pruned=False,
)
