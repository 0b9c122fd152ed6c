"""Language models of published sizes for `mmspec bench core`; weights are random."""

from typing import Any

from mmspec.bench.core.shape import Shape

MAKE = "mmspec.bench.core.shape:language"
_POSITIONS = 65536

LLAMA: dict[str, Any] = {
    "config": "LlamaConfig", "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": _POSITIONS,
}  # fmt: skip
QWEN: dict[str, Any] = {
    "config": "Qwen3MoeConfig", "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 151936,
    "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "max_position_embeddings": _POSITIONS,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512,
}  # fmt: skip

SHAPES = (
    Shape(
        "llama-1b",
        MAKE,
        LLAMA
        | {"hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192, "head_dim": 64}
        | {"tie_word_embeddings": True},
        SMALL,
    ),
    Shape(
        "llama-8b",
        MAKE,
        LLAMA
        | {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336, "head_dim": 128}
        | {"tie_word_embeddings": False},
        SMALL,
    ),
    Shape(
        "qwen3-moe-30b-a3b",
        MAKE,
        QWEN
        | {"hidden_size": 2048, "num_hidden_layers": 48, "intermediate_size": 6144, "head_dim": 128}
        | {"moe_intermediate_size": 768, "tie_word_embeddings": False},
        SMALL | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
)
"""Two dense models and a mixture of experts."""
