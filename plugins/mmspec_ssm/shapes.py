"""Recurrent models of published sizes for `mmspec bench core`; weights are random."""

from mmspec.bench.core.shape import Shape

SHAPES = (
    Shape(
        "mamba2-2.7b",
        "mmspec.bench.core.shape:language",
        {
            "config": "Mamba2Config", "hidden_size": 2560, "num_hidden_layers": 64, "num_heads": 80, "head_dim": 64,
            "state_size": 128, "n_groups": 1, "vocab_size": 50288, "tie_word_embeddings": True,
            "initializer_range": 0.02,  # 0.1 makes rounding in bfloat16 an eighth of logits at this width
        },
        {"hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 16, "state_size": 8, "vocab_size": 512},
    ),
)  # fmt: skip
"""Mamba-2 (arXiv 2405.21060)."""
