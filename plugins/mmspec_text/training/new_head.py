"""A head of any kind before its training, and the two files that it becomes."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.hosts.weight_files import CONFIG, FILES, SAFE
from mmspec.training.work import save_tensors
from mmspec_text.drafters.heads.layers import BlockSizes, HeadNetwork
from mmspec_text.drafters.heads.positions import ROTARY
from mmspec_text.training.recipe import DrafterRecipe


@dataclass(frozen=True)
class NewHead:
    """A head before its training."""

    network: nn.Module  # the head, joined to its target
    boundaries: tuple[int, ...]  # of the target's layers, whose states it reads
    hidden: str | None  # the beginning of the names of its hidden matrices, which Muon updates; None: AdamW does all
    # Writes the head, as far as it is trained by then, into a folder; makes the folder if it is missing
    write: Callable[[Path], None]


Begin = Callable[[Any, DrafterRecipe, str, Tensor | None], NewHead]
"""Makes a head of a kind for a target, by a recipe, with the target's name and, where it scores only some ids, these:
`[draft vocabulary]` int64, ascending; None: all of them."""


COPIED = ("default", "linear", "llama3")
"""Kinds of rotary positions that do not depend on the length of a text."""


def join_model(network: HeadNetwork, model: Any) -> None:
    """Let a head use its target's modules."""
    network.join(model.get_input_embeddings(), model.get_output_embeddings(), model.device, torch.float32)


def draw_weights(network: nn.Module, seed: int, silent: bool = True) -> None:
    """Draw a head's matrices; if `silent`, those that write into a residual stream are 0 at first, and add nothing."""
    generator = torch.Generator().manual_seed(seed)
    for name, weights in network.named_parameters():
        if weights.dim() > 1:
            nn.init.normal_(weights, std=0.02, generator=generator)
        if silent and name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.zeros_(weights)


def refuse_widths(model: Any, hidden: int) -> None:
    """Refuse a target whose embedding or output layer, which heads use, has another width than its states."""
    for what, table in (("embedding", model.get_input_embeddings()), ("output layer", model.get_output_embeddings())):
        if (width := table.weight.shape[-1]) != hidden:
            raise ValueError(
                f"the {what} of {type(model).__name__} has vectors of {width} numbers, and its states have {hidden}: "
                "no head is trained for it; train --kind model"
            )


def sizes_for(model: Any, intermediate: int | None) -> dict[str, Any]:
    """The sizes of a new head with layers: those of the target's own layers, and its rotary positions.

    `intermediate` counts the numbers inside of MLPs; None: as many as in the target's. A target without attention, or
    with rotary positions of another kind than `COPIED`, leaves the usual ones.
    """
    whole = model.config.get_text_config(decoder=True)
    config = whole.per_layer_config[0]  # of a layer: they may differ
    hidden, heads = config.hidden_size, getattr(config, "num_attention_heads", None) or 4
    refuse_widths(model, hidden)
    inside = getattr(config, "intermediate_size", None) or 4 * hidden
    rope = getattr(whole, "rope_parameters", None) or {}
    kind = str(rope.get("rope_type"))
    read = ("rope_type", "rope_theta", *ROTARY.get(kind, ()))  # a head turns all of its numbers, as not all targets do
    copied = {"rope": {key: rope[key] for key in read if key in rope}} if kind in COPIED else {}
    return copied | {
        "hidden": hidden,
        "intermediate": intermediate or (inside if isinstance(inside, int) else inside[0]),
        "heads": heads,
        "key_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or hidden // heads,
        "eps": getattr(config, "rms_norm_eps", 1e-6),
        "vocab": config.vocab_size,
        "target_hidden": config.hidden_size,
        "own_embedding": False,
    }


def layer_entries(a: BlockSizes, layers: int, vocab: int) -> dict[str, Any]:
    """The entries of a config that say what a head's layers are."""
    return {
        "hidden_size": a.hidden,
        "intermediate_size": a.intermediate,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.key_heads,
        "head_dim": a.head_dim,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "hidden_act": a.activation,
        "rms_norm_eps": a.eps,
        "rope_parameters": dict(a.rope),
        "rope_theta": a.rope["rope_theta"],  # where readers of transformers 4's files look for it
    }


def write_files(
    weights: Mapping[str, Tensor], config: Mapping[str, Any], folder: Path, file: str = FILES[0], entries: str = CONFIG
) -> None:
    """Write two files of these names into a folder, which is made if missing: of the weights, and of the config."""
    folder.mkdir(parents=True, exist_ok=True)
    if file.endswith(SAFE):
        save_file(dict(weights), folder / file, metadata={"format": "pt"})
    else:
        save_tensors(folder / file, dict(weights))
    (folder / entries).write_text(json.dumps(config, indent=2) + "\n")


def half(weights: Tensor) -> Tensor:
    """Weights as they are stored: in float16, on the CPU."""
    return weights.detach().cpu().half().contiguous()
