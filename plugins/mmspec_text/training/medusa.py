"""New Medusa heads for a target (Medusa-1: Cai et al., arXiv 2401.10774, § 2.2.1), and their files.

One residual block for each depth, and the target's output layer for all: so a head of a small target is a few hundred
thousand numbers. Blocks begin at zero, so that at first every head scores as the target's output layer does.
"""

from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mmspec.core.hidden import FINAL
from mmspec_text.drafters.medusa import MedusaNetwork, MedusaSizes
from mmspec_text.training.new_head import NewHead, half, join_model, write_files
from mmspec_text.training.recipe import DrafterRecipe


def begun_medusa(model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None) -> NewHead:
    """As many heads as a draft is deep; arguments as in `Begin`."""
    config = model.config.get_text_config(decoder=True)
    hidden, vocab = config.hidden_size, config.vocab_size
    sizes = MedusaSizes(
        recipe.depth, hidden, hidden, vocab, vocab, own_embedding=True, one_output=True, own_output=False
    )
    network = MedusaNetwork(sizes, vocab)
    for weights in network.parameters():
        nn.init.zeros_(weights)
    join_model(network, model)
    return NewHead(network, (FINAL,), "blocks", partial(write_medusa, network, name))


def write_medusa(head: MedusaNetwork, target: str, folder: Path) -> None:
    """Write heads in vLLM's layout, `blocks.{head}.layers.{block}`, without the output layer, which is the target's."""
    weights = {}
    for key, value in head.state_dict().items():
        part, number, block, name = key.split(".")
        weights[f"{part}.{number}.layers.{block}.{name}"] = half(value)
    width = weights["blocks.0.layers.0.weight"].shape[1]
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "verifier": target,
        "num_heads": head.units,
        "num_hidden_layers": len(weights) // 2 // head.units,
        "hidden_size": width,
        "vocab_size": head.vocab,
        "original_lm_head": True,
        "medusa_fc_bias": True,
        "dtype": "float16",
    }
    write_files(weights, config, folder)
