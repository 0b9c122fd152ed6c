"""Decoders that route every token to some of several experts."""

from tests.support.zoo.recipe import CONTEXT, WINDOW, Recipe

MIXED = dict(sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"] * 2)
LOCAL = dict(num_local_experts=4, num_experts_per_tok=2)
PLAIN = dict(num_experts=4, num_experts_per_tok=2)
SMALL = dict(PLAIN, moe_intermediate_size=32)
SHARED = dict(SMALL, shared_expert_intermediate_size=32)
ROUTED = dict(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
GROUPS = dict(n_group=1, topk_group=1)

EXPERTS = {
    "mixtral": Recipe("mixtral", "moe", dict(LOCAL, sliding_window=None), gain=7.0),
    "qwen2_moe": Recipe("qwen2_moe", "moe", SHARED),
    "qwen3_moe": Recipe("qwen3_moe", "moe", SMALL, gain=9.0),
    "olmoe": Recipe("olmoe", "moe", PLAIN),
    "flex_olmo": Recipe("flex_olmo", "moe", PLAIN, gain=7.0),
    "phimoe": Recipe("phimoe", "moe", dict(LOCAL, sliding_window=None), gain=7.0),
    "granitemoe": Recipe("granitemoe", "moe", dict(LOCAL, attention_multiplier=0.25)),
    "granitemoeshared": Recipe(
        "granitemoeshared", "moe", dict(LOCAL, attention_multiplier=0.25, shared_intermediate_size=32)
    ),
    "granitemoehybrid-attention": Recipe(
        "granitemoehybrid",
        "moe",
        dict(
            LOCAL,
            layer_types=["full_attention"] * 4,
            position_embedding_type="rope",
            attention_multiplier=0.25,
            shared_intermediate_size=32,
            mamba_n_heads=4,
            mamba_d_head=32,
        ),
    ),
    "aria_text": Recipe("aria_text", "moe", dict(moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1), gain=7.0),
    "dbrx": Recipe(
        "dbrx",
        "moe",
        dict(
            d_model=64,
            n_heads=4,
            n_layers=2,
            max_seq_len=CONTEXT,
            attn_config=dict(kv_n_heads=2, clip_qkv=8.0, rope_theta=10000.0),
            ffn_config=dict(hidden_size=64, ffn_hidden_size=96, moe_num_experts=4, moe_top_k=2),
        ),
    ),
    "ernie4_5_moe": Recipe(
        "ernie4_5_moe",
        "moe",
        dict(
            moe_num_experts=4,
            moe_k=2,
            moe_num_shared_experts=1,
            moe_intermediate_size=32,
            moe_layer_start_index=1,
            moe_layer_end_index=3,
        ),
        gain=7.0,
    ),
    "hunyuan_v1_moe": Recipe("hunyuan_v1_moe", "moe", dict(num_experts=4, moe_topk=2)),
    "glm4_moe": Recipe("glm4_moe", "moe", dict(ROUTED, **GROUPS), gain=7.0),
    "solar_open": Recipe("solar_open", "moe", dict(ROUTED, **GROUPS), gain=6.0),
    "jetmoe": Recipe("jetmoe", "moe", dict(LOCAL, kv_channels=16)),
    "minimax_m2": Recipe("minimax_m2", "moe", dict(LOCAL, rotary_dim=8)),
    "hy_v3": Recipe("hy_v3", "moe", dict(SMALL, num_shared_experts=1), salt=1),
    "mixtral-sliding": Recipe("mixtral", "moe-sliding", dict(LOCAL, sliding_window=WINDOW), gain=7.0),
    "phimoe-sliding": Recipe("phimoe", "moe-sliding", dict(LOCAL, sliding_window=WINDOW), gain=7.0),
    "afmoe": Recipe("afmoe", "moe-mixed", dict(SMALL, **MIXED, num_shared_experts=1), salt=1),
    "beam": Recipe("beam", "moe-mixed", dict(SMALL, **MIXED, **GROUPS, mlp_layer_types=["dense", "sparse"] * 2)),
    "cohere2_moe": Recipe("cohere2_moe", "moe-mixed", dict(PLAIN, **MIXED, logit_scale=1.0)),
    "dots1": Recipe("dots1", "moe-mixed", dict(ROUTED, **GROUPS, **MIXED, n_shared_experts=1, first_k_dense_replace=1)),
    "exaone_moe": Recipe("exaone_moe", "moe-mixed", dict(SMALL, **MIXED)),
    "flint": Recipe("flint", "moe-mixed", dict(SHARED, **MIXED, mlp_only_layers=[0]), gain=7.0),
    "granitemoe_swa": Recipe("granitemoe_swa", "moe-mixed", dict(LOCAL, **MIXED, attention_multiplier=0.25), gain=5.0),
    "kolibri1": Recipe(
        "kolibri1",
        "moe-mixed",
        dict(LOCAL, **MIXED, moe_intermediate_size=32, shared_expert_intermediate_size=32),
    ),
    "laguna": Recipe("laguna", "moe-mixed", dict(SHARED, **MIXED, num_attention_heads_per_layer=[4, 2, 4, 2])),
    "mellum": Recipe("mellum", "moe-mixed", dict(LOCAL, **MIXED, moe_intermediate_size=32)),
    "gemma4_text-moe": Recipe(
        "gemma4_text",
        "moe-mixed",
        dict(
            MIXED,
            hidden_size_per_layer_input=0,
            enable_moe_block=True,
            num_experts=4,
            top_k_experts=2,
            moe_intermediate_size=32,
            attention_k_eq_v=True,
        ),
        factors={"q_norm": 0.25},
        gain=7.0,
    ),
    "gpt_oss": Recipe("gpt_oss", "sinks", dict(LOCAL, **MIXED), gain=5.0),
    "mimo_v2_flash": Recipe("mimo_v2_flash", "sinks", dict(ROUTED, **GROUPS, **MIXED, v_head_dim=8), gain=9.0),
}
"""Name → recipe."""
