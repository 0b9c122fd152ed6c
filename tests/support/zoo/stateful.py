"""Configurations of decoders whose memory is more than keys and values, and that are refused: states, indices."""

from collections.abc import Mapping
from typing import Any

from tests.support.zoo.latent import LATENT
from tests.support.zoo.recipe import VOCAB, WINDOW

EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
SHARED = dict(EXPERTS, shared_expert_intermediate_size=32)
ROUTED = dict(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
GROUPS = dict(n_group=1, topk_group=1)
HYBRID = dict(layer_types=["linear_attention", "full_attention"] * 2)
DELTA = dict(HYBRID, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=16, linear_value_head_dim=16)
INKLING = dict(
    swa_num_attention_heads=4,
    swa_num_key_value_heads=2,
    swa_head_dim=16,
    sliding_window_size=WINDOW,
    d_rel=4,
    rel_extent=32,
    layer_types=["hybrid_sliding", "hybrid"] * 2,
    **ROUTED,
)
INDEXED = dict(LATENT, **ROUTED, **GROUPS, index_topk=8, index_head_dim=16, index_n_heads=2)
RECURRENT: Mapping[str, Mapping[str, Any]] = dict(
    recurrent_gemma=dict(lru_width=64, attention_window_size=WINDOW, block_types=["recurrent", "attention"]),
    rwkv=dict(attention_hidden_size=64),
    xlstm=dict(num_heads=4, num_hidden_layers=2, chunk_size=16),
    minimax=dict(HYBRID, num_local_experts=4, block_size=16, sliding_window=None),
    zaya=dict(num_experts=4, moe_intermediate_size=32, router_hidden_size=16, layer_types=["hybrid"] * 4),
    inkling_text=dict(INKLING, n_shared_experts=1),
    inkling2_text=dict(INKLING, unpadded_vocab_size=VOCAB, n_layers_per_attn_res_block=2),
)
"""Name → configuration of models whose recurrent layers cannot be run over a tree."""

INDEXES: Mapping[str, Mapping[str, Any]] = dict(
    minimax_m3_vl_text=dict(
        num_local_experts=4,
        num_experts_per_tok=2,
        rotary_dim=8,
        dense_intermediate_size=96,
        shared_intermediate_size=32,
        layer_types=["full_attention", "minimax_m3_sparse"] * 2,
        index_n_heads=4,
        index_head_dim=16,
        index_block_size=8,
        index_topk_blocks=1,
    ),
    deepseek_v32=dict(INDEXED, first_k_dense_replace=1, layer_types=["indexed_attention"] * 4),
    glm_moe_dsa=dict(INDEXED, first_k_dense_replace=1),
    hy_v4=INDEXED,
    axk2=dict(INDEXED, gated_norm_rank=4),
    dots3_note_text=dict(
        {name: value for name, value in INDEXED.items() if name != "head_dim"}, layer_types=["indexed_attention"] * 4
    ),
    deepseek_v4=dict(
        ROUTED,
        q_lora_rank=16,
        num_key_value_heads=1,
        layer_types=["heavily_compressed_attention", "compressed_sparse_attention"] * 2,
        mlp_layer_types=["moe"] * 4,
        compress_rates=dict(compressed_sparse_attention=4, heavily_compressed_attention=8),
        hc_mult=2,
        sliding_window=WINDOW,
        o_groups=2,
        o_lora_rank=16,
        index_topk=8,
        index_head_dim=16,
        index_n_heads=2,
    ),
    qwen4_exp_text=dict(
        {name: value for name, value in DELTA.items() if name != "layer_types"},
        **SHARED,
        layer_types=["linear_attention", "indexed_attention"] * 2,
        hc_count=2,
        hc_lowrank=8,
        indexer_n_heads=2,
        indexer_kv_heads=1,
        indexer_head_dim=16,
        indexer_budget=8,
        indexer_compress_ratio=2,
    ),
)
"""Name → configuration of models that keep an index or compressed blocks."""
