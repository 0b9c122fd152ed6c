"""A new EAGLE-3 head for a target (Li et al., arXiv 2503.01840).

Embedding and, with the whole vocabulary, output layer are the target's and stay as they are. A new head begins where
its states are the target's last ones, so that at first it scores as the target's output layer does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec_text.drafters.heads.eagle.family import Architecture
from mmspec_text.drafters.heads.eagle.network import EagleNetwork


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of a new head; its states are as wide as the target's."""

    intermediate: int = 512  # numbers inside its MLP
    heads: int = 4  # attention heads
    key_heads: int = 1  # heads of keys and values
    head_dim: int = 64  # numbers of an attention head


def usual_boundaries(layers: int) -> tuple[int, ...]:
    """An early, a middle and the last boundary of a target with so many layers."""
    return tuple(sorted({min(2, layers), (layers + 2) // 2, layers}))


def new_head(model: Any, boundaries: Sequence[int], sizes: HeadSizes, ids: Tensor | None, seed: int) -> EagleNetwork:
    """A head before training.

    Args:
        model: The target.
        boundaries: Of the states that it reads.
        sizes: Its sizes.
        ids: `[draft vocabulary]` int64, ascending: the ids that it scores; None: all of them, with the target's output
            layer.
        seed: Of the random weights.
    """
    config = model.config.get_text_config(decoder=True)
    hidden, vocab = config.hidden_size, config.vocab_size
    architecture = Architecture(
        hidden=hidden,
        intermediate=sizes.intermediate,
        heads=sizes.heads,
        key_heads=sizes.key_heads,
        head_dim=sizes.head_dim,
        layers=1,
        vocab=vocab,
        draft_vocab=vocab if ids is None else len(ids),
        features=len(boundaries),
        target_hidden=hidden,
        fused=True,
        projected=True,
        own_embedding=False,
        own_output=ids is not None,
        final_norm=True,
        embedding_norm=False,
        first_norms=frozenset({"input_layernorm", "hidden_norm"}),
        norm_before_residual=True,
        fc_norm=True,
        rope={"rope_type": "default", "rope_theta": 10000.0},
    )
    generator = torch.Generator().manual_seed(seed)
    head = EagleNetwork(architecture, vocab)
    for name, weights in head.named_parameters():
        if weights.dim() > 1:
            nn.init.normal_(weights, std=0.02, generator=generator)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.zeros_(weights)
    with torch.no_grad():
        head.fc.weight[:, -hidden:] += torch.eye(hidden)
        if ids is not None and head.lm_head is not None:
            head.lm_head.weight.copy_(model.get_output_embeddings().weight[ids])
    head.ids = ids
    head.join(model.get_input_embeddings(), model.get_output_embeddings(), model.device, torch.float32)
    return head
