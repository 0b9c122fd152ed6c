"""Decoders whose every layer sees the whole text."""

from tests.support.zoo.recipe import CONTEXT, Recipe

GPT = dict(n_embd=64, n_layer=2, n_head=4, n_positions=CONTEXT)
ROTARY_GPT = dict(GPT, rotary_dim=8)
FALCON = dict(alibi=False, new_decoder_architecture=False)

DENSE = {
    "llama": Recipe("llama", "full"),
    "internlm3": Recipe("internlm3", "full"),
    "iquestcoder": Recipe("iquestcoder", "full"),
    "qwen2": Recipe("qwen2", "full"),
    "qwen3": Recipe("qwen3", "full", gain=7.0),
    "mistral-full": Recipe("mistral", "full", dict(sliding_window=None)),
    "ministral3": Recipe("ministral3", "full", gain=7.0),
    "gemma": Recipe("gemma", "full"),
    "phi3": Recipe("phi3", "full", dict(sliding_window=None)),
    "glm": Recipe("glm", "full"),
    "glm4": Recipe("glm4", "full", gain=7.0),
    "olmo": Recipe("olmo", "full", dict(clip_qkv=2.0)),
    "olmo2": Recipe("olmo2", "full"),
    "starcoder2": Recipe("starcoder2", "full", dict(sliding_window=None), salt=1),
    "seed_oss": Recipe("seed_oss", "full"),
    "arcee": Recipe("arcee", "full"),
    "apertus": Recipe("apertus", "full"),
    "bitnet": Recipe("bitnet", "full", gain=7.0),
    "diffllama": Recipe("diffllama", "full"),
    "ernie4_5": Recipe("ernie4_5", "full"),
    "helium": Recipe("helium", "full"),
    "hunyuan_v1_dense": Recipe("hunyuan_v1_dense", "full"),
    "jais2": Recipe("jais2", "full"),
    "nemotron": Recipe("nemotron", "full"),
    "persimmon": Recipe("persimmon", "full", gain=9.0),
    "stablelm": Recipe("stablelm", "full"),
    "nanochat": Recipe("nanochat", "softcap"),
    "granite": Recipe(
        "granite",
        "multipliers",
        dict(attention_multiplier=0.25, embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=0.5),
        gain=5.0,
    ),
    "hyperclovax": Recipe("hyperclovax", "multipliers", dict(attention_multiplier=0.25, residual_multiplier=0.5)),
    "smollm3": Recipe("smollm3", "no-positions", dict(no_rope_layers=[1, 0, 1, 0]), gain=7.0),
    "doge": Recipe("doge", "dynamic-mask"),
    "hrm_text": Recipe(
        "hrm_text",
        "looped",
        dict(H_cycles=2, L_cycles=1, L_bp_cycles=[1], num_layers_per_stack=1, num_hidden_layers=4),
        gain=7.0,
    ),
    # Attention and feed-forward side by side.
    "phi": Recipe("phi", "parallel-residual", gain=6.0),
    "gptj": Recipe("gptj", "parallel-residual", ROTARY_GPT, gain=12.0),
    "codegen": Recipe("codegen", "parallel-residual", ROTARY_GPT),
    "gpt_neox": Recipe("gpt_neox", "parallel-residual", gain=7.0),
    "gpt_neox-sequential": Recipe("gpt_neox", "full", dict(use_parallel_residual=False), gain=12.0),
    "gpt_neox_japanese": Recipe("gpt_neox_japanese", "full"),
    "stablelm-parallel": Recipe("stablelm", "parallel-residual", dict(use_parallel_residual=True, qk_layernorm=True)),
    "cohere": Recipe("cohere", "parallel-residual", dict(use_qk_norm=True, logit_scale=1.0)),
    "cohere_compass_text": Recipe(
        "cohere_compass_text",
        "parallel-residual",
        dict(logit_scale=1.0, rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=10000.0))),
        gain=7.0,
    ),
    "falcon-multi-query": Recipe("falcon", "parallel-residual", dict(FALCON, multi_query=True), gain=7.0),
    "falcon-new": Recipe(
        "falcon", "parallel-residual", dict(alibi=False, new_decoder_architecture=True, num_kv_heads=2)
    ),
    "falcon-sequential": Recipe("falcon", "full", dict(FALCON, multi_query=False, parallel_attn=False), gain=9.0),
    # Positions that are added to the embedding.
    "gpt2": Recipe("gpt2", "learned-positions", GPT),
    "gpt-sw3": Recipe("gpt-sw3", "learned-positions", dict(GPT, scale_attn_by_inverse_layer_idx=True)),
    "gpt_bigcode": Recipe("gpt_bigcode", "learned-positions", GPT),
    "gpt_bigcode-multi-head": Recipe("gpt_bigcode", "learned-positions", dict(GPT, multi_query=False)),
    "opt": Recipe("opt", "learned-positions", dict(ffn_dim=96, word_embed_proj_dim=64)),
    "opt-post-norm": Recipe(
        "opt", "learned-positions", dict(ffn_dim=96, word_embed_proj_dim=32, do_layer_norm_before=False), gain=6.0
    ),
    "biogpt": Recipe("biogpt", "learned-positions", gain=9.0),
    "xglm": Recipe(
        "xglm", "sinusoidal-positions", dict(d_model=64, num_layers=2, attention_heads=4, ffn_dim=96), gain=6.0
    ),
    "ctrl": Recipe(
        "ctrl",
        "sinusoidal-positions",
        dict(n_embd=64, n_layer=2, n_head=4, dff=96, n_positions=CONTEXT),
        gain=5.0,
        salt=1,
    ),
}
"""Name → recipe."""
