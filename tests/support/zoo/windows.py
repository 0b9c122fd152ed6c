"""Decoders some of whose layers see a window or a chunk, or share keys; so small that a test's text crosses them."""

from tests.support.zoo.recipe import VOCAB, WINDOW, Recipe

SLIDING = dict(sliding_window=WINDOW)
MIXED = dict(SLIDING, layer_types=["sliding_attention", "full_attention"] * 2)
SOFT = {"q_norm": 0.25}
"""Gemma 4 normalises queries and divides scores by nothing: random weights would make attention chaotic."""

GEMMA = dict(query_pre_attn_scalar=16)

WINDOWS = {
    "mistral": Recipe("mistral", "sliding", SLIDING),
    "phi3-sliding": Recipe("phi3", "sliding", SLIDING),
    "starcoder2-sliding": Recipe("starcoder2", "sliding", SLIDING, gain=9.0),
    "doge-sliding": Recipe("doge", "sliding", SLIDING),
    "qwen2-mixed": Recipe("qwen2", "mixed", dict(SLIDING, use_sliding_window=True, max_window_layers=2)),
    "qwen3-mixed": Recipe("qwen3", "mixed", dict(SLIDING, use_sliding_window=True, max_window_layers=2)),
    "ministral": Recipe("ministral", "mixed", MIXED),
    "cwm": Recipe("cwm", "mixed", MIXED),
    "olmo3": Recipe("olmo3", "mixed", MIXED),
    "cohere2": Recipe("cohere2", "mixed", dict(MIXED, logit_scale=1.0)),
    "exaone4": Recipe("exaone4", "mixed", MIXED),
    "granite_swa": Recipe("granite_swa", "mixed", dict(MIXED, attention_multiplier=0.25), gain=7.0),
    "modernbert-decoder": Recipe("modernbert-decoder", "mixed", dict(MIXED, local_attention=WINDOW), gain=9.0),
    "gemma3_text": Recipe("gemma3_text", "mixed", dict(MIXED, **GEMMA)),
    "gemma4_text": Recipe(
        "gemma4_text",
        "mixed",
        dict(MIXED, hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCAB),
        factors=SOFT,
        gain=6.0,
        salt=1,
    ),
    "gemma4_unified_text": Recipe("gemma4_unified_text", "mixed", MIXED, factors=SOFT, gain=9.0),
    "gemma2": Recipe(
        "gemma2", "softcap", dict(MIXED, **GEMMA, attn_logit_softcapping=5.0, final_logit_softcapping=20.0)
    ),
    "vaultgemma": Recipe("vaultgemma", "softcap", dict(MIXED, **GEMMA, attn_logit_softcapping=5.0)),
    "llama4_text": Recipe(
        "llama4_text",
        "chunked",
        dict(
            layer_types=["chunked_attention", "full_attention"] * 2,
            attention_chunk_size=WINDOW,
            no_rope_layers=[1, 0, 1, 0],
            num_local_experts=2,
            intermediate_size_mlp=96,
            interleave_moe_layer_step=2,
        ),
    ),
    "gemma3n_text": Recipe(
        "gemma3n_text",
        "shared-keys",
        dict(
            MIXED,
            num_kv_shared_layers=2,
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=VOCAB,
            laurel_rank=8,
            activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0],
            intermediate_size=[96] * 4,
        ),
        gain=7.0,
    ),
    "gemma4_text-shared": Recipe(
        "gemma4_text",
        "shared-keys",
        dict(MIXED, num_kv_shared_layers=2, hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCAB),
        factors=SOFT,
        gain=7.0,
        head=8.0,
    ),
}
"""Name → recipe."""
