"""A gated LoRA for a target before its training, and its files.

Samragh et al., arXiv 2507.11851: masks behind a text, a LoRA at them alone, and a sampler learn; the target does not.
Each unit of a block adds three parts to the loss: what the target's output layer makes of a mask's state, what the
sampler makes of it with the text's unit before, and the squared distance of the state from the target's own, a unit
later in the text, where it says the same unit (latent consistency). From notes on the paper: cross-entropy with the
text, the parts' sum, AdamW at 2e-4. Chosen: the squared distance is the mean over a state's numbers; blocks begin
behind drawn units (`anchors`) and not behind all, A is drawn as PEFT does, B is zero, and the sampler's last norm
begins at the size of the target's states, so that its scores are spread as the target's are.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.hidden import FINAL
from mmspec.hosts.draft_models import own_target
from mmspec.hosts.features import Reading
from mmspec.hosts.weight_files import ADAPTER, SAFE
from mmspec_text.drafters.gated_lora import ENDS, MASKS, PREFIX
from mmspec_text.drafters.heads.gated import GatedNetwork
from mmspec_text.drafters.heads.unroll import Filled
from mmspec_text.training.blocks import drawn_rows, fill_blocks, refuse_odd_blocks
from mmspec_text.training.new_head import NewHead, half, join_model, refuse_widths, write_files
from mmspec_text.training.recipe import DrafterRecipe

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Ends of the names of the layers that change, which are the paper's."""
ALPHA = 2
"""α over the rank, in a re-implementation."""


class Gated(nn.Module):
    """An adapter in its target's passes over texts. It `Samples`: a block hangs behind the unit before each root."""

    share = 1.0

    def __init__(self, model: Any, network: GatedNetwork) -> None:
        super().__init__()
        self.network = network
        self._model, self._model_info = (model,), own_target(model).model_info  # in a tuple: torch does not adopt it
        self._known: int | None = None  # units of the text of the pass that runs; None: it has no masks
        self._hooks = network.hooks(model, lambda: self._known)

    def filled(self, units: Tensor, roots: Tensor, kept: Sequence[int]) -> Filled:
        (model,), network = self._model, self.network
        on = [layer.register_forward_hook(hook) for layer, hook in self._hooks]
        self._known = units.shape[1]
        try:
            with Reading(self._model_info, (FINAL,)) as reading:
                _, plain = fill_blocks(model, units, roots - 1, network.embeddings, kept, text=False)
        finally:
            self._known = None
            for hook in on:
                hook.remove()
        assert reading.states is not None
        states = list(reading.states[:, units.shape[1] :].split(list(kept), 1))
        last, told = units.shape[1] - 1, []
        for depth, count in enumerate(kept):
            told.append(units.gather(1, (roots[:, :count] + depth).clamp(max=last)))
        return Filled(states, plain, [network.sampled(*each) for each in zip(states, told, strict=True)])

    def drafted(self, units: Tensor, roots: Tensor, kept: Sequence[int]) -> list[Tensor]:
        """Logits over the target's ids, by the sampler; see `drafted_blocks`."""
        return self.filled(units, roots, kept).scored


def begun_gated(model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None) -> NewHead:
    """As many masks as a draft is deep; arguments as in `Begin`. Refuses a target without such layers."""
    refuse_widths(model, hidden := model.config.get_text_config(decoder=True).hidden_size)
    info = own_target(model).model_info
    inside = {id(part) for layer in info.language.layers for part in layer.modules()}
    sizes = {
        key: (part.in_features, part.out_features)
        for key, part in model.named_modules()
        if isinstance(part, nn.Linear) and id(part) in inside and key.rpartition(".")[2] in LAYERS
    }
    if not sizes:
        raise ValueError(
            f"{type(model).__name__} has no linear layers named {', '.join(LAYERS)}, which a gated LoRA changes; train "
            "--kind ppd"
        )
    network = GatedNetwork(sizes, recipe.depth, hidden, recipe.rank, ALPHA)
    rows = drawn_rows(model, recipe.depth, recipe.seed)
    refuse_odd_blocks(model, recipe.context, rows, "the target")
    drawn = torch.Generator().manual_seed(recipe.seed)
    with torch.no_grad():
        for row, mask in zip(rows, network.masks, strict=True):
            mask.copy_(row)
        for down in network.down:
            nn.init.kaiming_uniform_(down, a=5**0.5, generator=drawn)
        for key, weight in network.sampler.named_parameters():
            if "linear" in key:
                nn.init.normal_(weight, std=0.02, generator=drawn)
        with Reading(info, (FINAL,)) as reading:
            model(torch.arange(recipe.context, device=model.device)[None] % len(model.get_input_embeddings().weight))
        assert reading.states is not None
        network.get_parameter("sampler.1.norm.weight").fill_(reading.states.float().square().mean().sqrt())
    join_model(network, model)
    return NewHead(Gated(model, network), (FINAL,), None, partial(write_gated, network, name))


def write_gated(network: GatedNetwork, target: str, folder: Path) -> None:
    """Write an adapter for a target of that name into a folder, which `gated-lora` reads."""
    weights = {MASKS: half(network.embeddings)}
    weights |= {f"sampler.{key}": half(value) for key, value in network.sampler.state_dict().items()}
    for name, *pair in zip(network.names, network.down, network.up, strict=True):
        weights |= {f"{PREFIX}{name}{end}": half(part) for end, part in zip(ENDS, pair, strict=True)}
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": target,
        "r": network.rank,
        "lora_alpha": network.rank * network.scale,
        "target_modules": sorted({name.rpartition(".")[2] for name in network.names}),
        "num_mask_tokens": len(network.masks),
    }
    write_files(weights, config, folder, f"adapter_model{SAFE}", ADAPTER)
