"""Decoders that cache a compressed latent in place of keys and values (multi-head latent attention)."""

from tests.support.zoo.recipe import Recipe

LATENT = dict(
    kv_lora_rank=16,
    q_lora_rank=24,
    qk_rope_head_dim=8,
    qk_nope_head_dim=16,
    v_head_dim=16,
    head_dim=8,
    num_key_value_heads=4,
)
ROUTED = dict(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
GROUPS = dict(n_group=1, topk_group=1)

LATENTS = {
    "minicpm3": Recipe("minicpm3", "mla", dict(LATENT, initializer_range=0.02), gain=5.0),
    "youtu": Recipe("youtu", "mla", dict(LATENT, initializer_range=0.02, embedding_initializer_range=0.02), gain=9.0),
    "deepseek_v2": Recipe("deepseek_v2", "mla", dict(LATENT, **ROUTED, n_shared_experts=1, first_k_dense_replace=1)),
    "deepseek_v3": Recipe("deepseek_v3", "mla", dict(LATENT, **ROUTED, **GROUPS, first_k_dense_replace=1)),
    "axk1": Recipe("axk1", "mla", dict(LATENT, **ROUTED, **GROUPS)),
    "glm4_moe_lite": Recipe("glm4_moe_lite", "mla", dict(LATENT, **ROUTED, **GROUPS), gain=9.0),
    "longcat_flash": Recipe(
        "longcat_flash",
        "mla",
        dict(
            LATENT,
            num_layers=2,
            num_hidden_layers=4,
            n_routed_experts=4,
            zero_expert_num=2,
            moe_topk=2,
            ffn_hidden_size=96,
            expert_ffn_hidden_size=32,
        ),
    ),
}
"""Name → recipe."""
