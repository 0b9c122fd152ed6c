"""A new DFlash head for a target (arXiv 2602.06036), and its files in the authors' layout.

Embedding and output layer are the target's and stay as they are, and so does the row of the id that stands for units
that are not known: one that texts have seldom. What enters the layers there is that row alone, by which a target whose
output layer is its embedding says that id again, at tens of nats: so all matrices are drawn, and the last norm begins
small. In training, blocks begin behind roots drawn from what is learnt, and depth k counts exp(-(k - 1) / 4): the
recipe's `decay` of 0.78.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from mmspec_text.drafters.heads.dflash.family import DFlashArchitecture, Sight
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.training.new_head import NewHead, draw_weights, half, join_model, layer_entries, sizes_for, write_files
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.written import ends

SPREAD = 2.0
"""The largest deviation, at first, of the scores of a row that is not known."""


def begun_dflash(model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None) -> NewHead:
    """A head whose block has as many units as a draft; arguments as in `Begin`, without `ids`."""
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    boundaries = inner_boundaries(layers)
    sizes = sizes_for(model, recipe.intermediate)
    architecture = DFlashArchitecture(
        **sizes,
        sights=(Sight(),) * recipe.layers,
        draft_vocab=sizes["vocab"],
        features=len(boundaries),
        own_output=False,
        own_mask=False,
        block=recipe.depth + 1,
        mask_token=mask_token_of(model),
        from_root=False,
    )
    head = DFlashNetwork(architecture, sizes["vocab"])
    draw_weights(head, recipe.seed, silent=False)
    with torch.no_grad():
        row = model.get_input_embeddings().weight[architecture.mask_token]
        spread = model.get_output_embeddings()(rms_norm(row, row.shape)).float().std()
        head.norm.weight.mul_((SPREAD / spread.cpu()).clamp(max=1))
    join_model(head, model)
    return NewHead(head, boundaries, "layers", partial(write_dflash, head, boundaries, name, layers))


def inner_boundaries(layers: int) -> tuple[int, ...]:
    """An early, a middle and a late boundary of a target with so many layers.

    Behind the last layer there is none: some engines read the state there before the target's final norm, and some
    behind it.
    """
    return tuple(sorted({min(2, layers - 1), (layers + 1) // 2, max(layers - 2, 1)} - {layers} or {0}))


def mask_token_of(model: Any) -> int:
    """The id that stands for units that are not known: the target's for a mask or for padding, or its last one.

    Padding that ends texts, too, is none; nor is a row of zeros, from which all rows of a block would look alike.
    """
    config, table = model.config.get_text_config(decoder=True), model.get_input_embeddings().weight
    ids = getattr(config, "mask_token_id", None), getattr(config, "pad_token_id", None)
    last = ends(model).tolist()
    usable = (one for one in ids if one is not None and one not in last and bool(table[one].any()))
    return next(usable, len(table) - 1)


def write_dflash(head: DFlashNetwork, boundaries: tuple[int, ...], target: str, layers: int, folder: Path) -> None:
    """Write a head, which reads the states at these boundaries of a target of so many layers, into a folder."""
    a = head.architecture
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "verifier": target,
        "block_size": a.block,
        "num_target_layers": layers,
        "dflash_config": {
            "mask_token_id": a.mask_token,
            "target_layer_ids": [boundary - 1 for boundary in boundaries],
        },
        **layer_entries(a, len(a.sights), a.vocab),
        "layer_types": ["full_attention"] * len(a.sights),
        "dtype": "float16",
    }
    write_files({key: half(value) for key, value in head.state_dict().items()}, config, folder)
