"""A new DFlash head for a target (arXiv 2602.06036), and its files in the authors' layout.

Embedding and output layer are the target's and stay as they are; what stands for units that are not known is a vector
of the head's own (`mask_embedding`), so that no id of the target is taken for it. In training, blocks begin behind
roots drawn from what is learnt, and depth k counts exp(-(k - 1) / 4): the recipe's `decay` of 0.78.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec_text.drafters.heads.dflash.family import DFlashArchitecture, Sight
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.training.files import half, write_files
from mmspec_text.training.heads import NewHead
from mmspec_text.training.recipe import DrafterRecipe

HEAD_DIM = 64
"""Numbers of an attention head."""


def begun_dflash(model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None) -> NewHead:
    """A head whose block has as many units as a draft; arguments as in `Begin`, without `ids`."""
    boundaries = inner_boundaries(model.config.get_text_config(decoder=True).num_hidden_layers)
    head = new_dflash(model, len(boundaries), recipe)

    def write(folder: Path) -> None:
        write_dflash(head, boundaries, name, folder)

    return NewHead(head, boundaries, "layers", write)


def inner_boundaries(layers: int) -> tuple[int, ...]:
    """An early, a middle and a late boundary of a target with so many layers.

    Behind the last layer there is none: some engines read the state there before the target's final norm, and some
    behind it.
    """
    return tuple(sorted({min(2, layers - 1), (layers + 1) // 2, max(layers - 2, 1)} - {layers} or {0}))


def new_dflash(model: Any, features: int, recipe: DrafterRecipe) -> DFlashNetwork:
    """A head before training.

    Args:
        model: The target.
        features: States of the target in one feature.
        recipe: Its sizes, and the seed of its weights.
    """
    config = model.config.get_text_config(decoder=True)
    hidden, vocab = config.hidden_size, config.vocab_size
    architecture = DFlashArchitecture(
        hidden=hidden,
        intermediate=recipe.intermediate,
        heads=4,
        key_heads=1,
        head_dim=HEAD_DIM,
        sights=(Sight(),) * recipe.layers,
        vocab=vocab,
        draft_vocab=vocab,
        features=features,
        target_hidden=hidden,
        own_embedding=False,
        own_output=False,
        own_mask=True,
        block=recipe.depth + 1,
        mask_token=None,
        from_root=False,
        rope={"rope_type": "default", "rope_theta": 10000.0},
    )
    generator = torch.Generator().manual_seed(recipe.seed)
    head = DFlashNetwork(architecture, vocab)
    for name, weights in head.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.zeros_(weights)
        elif weights.dim() > 1 or name == "mask_embedding":
            nn.init.normal_(weights, std=0.02, generator=generator)
    head.join(model.get_input_embeddings(), model.get_output_embeddings(), model.device, torch.float32)
    return head


def write_dflash(head: DFlashNetwork, boundaries: tuple[int, ...], target: str, folder: Path) -> None:
    """Write a head.

    Args:
        head: The head; it is unchanged.
        boundaries: Of the target's layers, whose states it reads.
        target: The target's name.
        folder: Receives the files; made if missing.
    """
    a = head.architecture
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "verifier": target,
        "block_size": a.block,
        "dflash_config": {"target_layer_ids": [boundary - 1 for boundary in boundaries]},
        "hidden_size": a.hidden,
        "intermediate_size": a.intermediate,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.key_heads,
        "head_dim": a.head_dim,
        "num_hidden_layers": len(a.sights),
        "layer_types": ["full_attention"] * len(a.sights),
        "vocab_size": a.vocab,
        "hidden_act": a.activation,
        "rms_norm_eps": a.eps,
        "rope_parameters": dict(a.rope),
        "rope_theta": a.rope["rope_theta"],
        "dtype": "float16",
    }
    write_files({key: half(value) for key, value in head.state_dict().items()}, config, folder)
