"""Decoders with recurrent layers, alone or beside attention: taken where a plugin brings their tree operations."""

from tests.support.zoo.latent import LATENT
from tests.support.zoo.recipe import WINDOW, Recipe
from tests.support.zoo.stateful import DELTA, GROUPS, HYBRID, SHARED

MAMBA = dict(state_size=8)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
LOCAL = dict(num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
CONVOLVED = dict(layer_types=["conv", "full_attention"] * 2)
ZAMBA = dict(layers_block_type=["mamba", "hybrid"] * 2, mamba_d_state=8)

RECURRENT = {
    "mamba2": Recipe(
        "mamba2", "ssd", dict(MAMBA, num_heads=8, head_dim=16, n_groups=2, chunk_size=16), gain=1.0, head=4.0, salt=1
    ),
    "bamba": Recipe(
        "bamba",
        "ssd",
        dict(mamba_n_heads=8, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1, attn_layer_indices=[1]),
        gain=4.0,
    ),
    "mamba": Recipe("mamba", "selective-scan", MAMBA, gain=1.0, head=8.0, embedding=4.0),
    "falcon_mamba": Recipe("falcon_mamba", "selective-scan", MAMBA, gain=1.0, head=4.0),
    "jamba": Recipe(
        "jamba",
        "selective-scan",
        dict(num_experts=4, attn_layer_period=2, attn_layer_offset=1, mamba_dt_rank=4, use_mamba_kernels=False),
        gain=4.0,
    ),
    "falcon_h1": Recipe(
        "falcon_h1",
        "ssd",
        dict(mamba_n_heads=8, mamba_d_head=16, mamba_d_ssm=128, mamba_d_state=8, mamba_n_groups=1),
        gain=6.0,
    ),
    "granitemoehybrid-mamba": Recipe(
        "granitemoehybrid",
        "ssd",
        dict(
            HYBRID,
            num_local_experts=4,
            num_experts_per_tok=2,
            shared_intermediate_size=32,
            mamba_n_heads=4,
            mamba_d_head=32,
        ),
        gain=4.0,
    ),
    "nemotron_h": Recipe(
        "nemotron_h",
        "ssd",
        dict(
            layers_block_type=["mamba", "attention"] * 2,
            mamba_num_heads=8,
            mamba_head_dim=16,
            ssm_state_size=8,
            n_groups=1,
            n_routed_experts=4,
            moe_intermediate_size=32,
            moe_shared_expert_intermediate_size=32,
        ),
        gain=4.0,
        salt=1,
    ),
    "zamba": Recipe(
        "zamba", "selective-scan", dict(ZAMBA, mamba_dt_rank=4, n_mamba_heads=2, use_mamba_kernels=False), gain=4.0
    ),
    "zamba2": Recipe(
        "zamba2",
        "ssd",
        dict(ZAMBA, mamba_headdim=16, n_mamba_heads=8, num_mem_blocks=1, adapter_rank=8, mamba_ngroups=1),
        gain=4.0,
    ),
    "qwen3_next": Recipe("qwen3_next", "gated-delta", dict(DELTA, **SHARED), gain=6.0),
    "qwen3_5_text": Recipe("qwen3_5_text", "gated-delta", DELTA, gain=4.0),
    "qwen3_5_moe_text": Recipe("qwen3_5_moe_text", "gated-delta", dict(DELTA, **SHARED), gain=6.0),
    "olmo_hybrid": Recipe("olmo_hybrid", "gated-delta", DELTA, gain=6.0),
    "kimi_linear": Recipe(
        "kimi_linear",
        "channel-delta",
        dict(LATENT, **HYBRID, **LOCAL, q_lora_rank=None, linear_head_dim=16, linear_num_heads=4),
        gain=6.0,
    ),
    "bailing_hybrid": Recipe(
        "bailing_hybrid", "channel-delta", dict(LATENT, **GROUPS, **LOCAL, head_dim=16, layer_group_size=2), gain=4.0
    ),
    "lfm2": Recipe("lfm2", "convolution", CONVOLVED, gain=6.0),
    "lfm2_moe": Recipe("lfm2_moe", "convolution", dict(CONVOLVED, **EXPERTS, num_dense_layers=1), gain=6.0),
    "lfm3": Recipe("lfm3", "convolution", dict(CONVOLVED, sliding_window=WINDOW), gain=6.0, salt=1),
}
"""Name → recipe."""
