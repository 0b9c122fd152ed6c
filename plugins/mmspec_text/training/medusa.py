"""New Medusa heads for a target (Medusa-1: Cai et al., arXiv 2401.10774, § 2.2.1), and their files.

One residual block and one output layer for each depth, as in the paper; the output layers begin as the target's, and
cost hidden width × vocabulary numbers each. Without output layers of their own (the recipe's `own_output`), all heads
use the target's, and a head of a small target is a few hundred thousand numbers. Blocks begin at zero, so that at first
every head scores as the target's output layer does.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.hidden import FINAL
from mmspec_text.drafters.medusa import FIRST_BLOCK, MedusaNetwork, MedusaSizes
from mmspec_text.training.new_head import NewHead, half, join_model, refuse_widths, write_files
from mmspec_text.training.recipe import DrafterRecipe


def begun_medusa(model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None) -> NewHead:
    """As many heads as a draft is deep; arguments as in `Begin`."""
    config, own = model.config.get_text_config(decoder=True), recipe.own_output
    hidden, vocab = config.hidden_size, config.vocab_size
    refuse_widths(model, hidden)
    sizes = MedusaSizes(
        recipe.depth, hidden, hidden, vocab, vocab, own_embedding=True, one_output=not own, own_output=own
    )
    network = MedusaNetwork(sizes, vocab)
    for weights in network.blocks.parameters():
        nn.init.zeros_(weights)
    with torch.no_grad():
        for weights in network.lm_heads.parameters():
            weights.copy_(model.get_output_embeddings().weight)
    join_model(network, model)
    return NewHead(network, (FINAL,), "blocks", partial(write_medusa, network, name))


def write_medusa(head: MedusaNetwork, target: str, folder: Path) -> None:
    """Write heads: with output layers in the authors' layout, `{head}.{block}.linear` and `{head}.{blocks}`; without
    in vLLM's, `blocks.{head}.layers.{block}`.
    """
    state, own = head.state_dict(), len(head.lm_heads) > 0
    layers = sum(key.startswith("blocks.0.") for key in state) // 2
    block, stem = ("{}.{}.linear.{}", "medusa_") if own else ("blocks.{}.layers.{}.{}", "")
    weights = {}
    for key, value in state.items():
        part, number, *rest = key.split(".")
        name = block.format(number, *rest) if part == "blocks" else f"{number}.{layers}.weight"
        weights[name] = half(value)
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "base_model_name_or_path": target,
        f"{stem}num_heads": head.units,
        "medusa_num_layers" if own else "num_hidden_layers": layers,
        "hidden_size": state[FIRST_BLOCK].shape[1],
        "vocab_size": head.vocab,
        "original_lm_head": not own,
        "medusa_fc_bias": True,
        "dtype": "float16",
    }
    write_files(weights, config, folder, *(["medusa_lm_head.pt"] if own else []))  # what their loader reads
