"""Reading masks, a gated LoRA and a sampler from a folder.

There is no official code and no published checkpoint. Files are named as PEFT names an adapter's:
`adapter_model.safetensors` with `mask_embeddings` `[mask, hidden]`, `base_model.model.{layer}.lora_A.weight` `[rank,
in]`, `….lora_B.weight` `[out, rank]`, `sampler.{linear,norm}.{0,1}.{weight,bias}`; `adapter_config.json` with `r` and
`lora_alpha`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmspec.registry.printable import shown
from mmspec_text.drafters.heads.adapter import read_adapter, refuse_unread
from mmspec_text.drafters.heads.apple.network import GatedLora, Sampler
from mmspec_text.drafters.heads.stored import fitted
from mmspec_text.drafters.heads.values import number, positive

MASKS, BASE, DOWN, UP, SAMPLER = "mask_embeddings", "base_model.model.", ".lora_A.weight", ".lora_B.weight", "sampler."


@dataclass(frozen=True)
class AppleCheckpoint:
    """What was trained."""

    name: str  # where it is from, for messages
    masks: Tensor  # `[mask, hidden]`
    down: Mapping[str, Tensor]  # `[rank, in]` by the name of a layer
    up: Mapping[str, Tensor]  # `[out, rank]` likewise
    scale: float  # factor of the LoRA
    sampler: Mapping[str, Tensor]

    def lora(self, model: nn.Module) -> GatedLora:
        """The LoRA for a model.

        Raises:
            ValueError: The model has no such linear layer.
        """
        layers = dict(model.named_modules())
        for name in self.down:
            layer = layers.get(name)
            wanted = (self.up[name].shape[0], self.down[name].shape[1])
            if not isinstance(layer, nn.Linear) or tuple(layer.weight.shape) != wanted:
                found = f"{list(layer.weight.shape)}" if isinstance(layer, nn.Linear) else "no linear layer"
                raise ValueError(
                    f"the LoRA of {self.name!r} is for a layer {shown(name)} of shape {list(wanted)}, and the target "
                    f"has {found} there: it is one of another target"
                )
        return GatedLora(self.down, self.up, self.scale)

    def head(self, vocab: int) -> Sampler:
        """The sampler for a target of so many ids.

        Raises:
            ValueError: Tensors are missing or have other shapes.
        """
        with torch.device("meta"):
            sampler = Sampler(self.masks.shape[1], vocab)
        return fitted(sampler, self.sampler, f"the sampler of {self.name!r}", "apple-mtp")


def read_apple(name: str) -> AppleCheckpoint:
    """Read masks, LoRA and sampler.

    Args:
        name: A folder, or a hub name.

    Raises:
        ValueError: There is none, it is damaged, or parts are missing or not read; the message names them.
    """
    what = f"the adapter {name!r}"
    config, tensors = read_adapter(name, what)
    masks = tensors.get(MASKS)
    if masks is None or masks.dim() != 2:
        there = ", ".join(sorted(tensors)[:3]) or "none"
        raise ValueError(f"{what} has no matrix {MASKS}: it is no adapter of masks. Its keys are {shown(there)}")
    down, up = (
        {key.removeprefix(BASE).removesuffix(end): value for key, value in tensors.items() if key.endswith(end)}
        for end in (DOWN, UP)
    )
    rank = positive(config, "r", what)
    if lone := sorted(down.keys() ^ up.keys()):
        raise ValueError(f"{what}: the layer {shown(lone[0])} has only one of lora_A and lora_B")
    if wrong := [key for key in down if len(down[key]) != rank or up[key].shape[1] != rank]:
        raise ValueError(f"{what}: r in its config is {rank}, and the layer {shown(wrong[0])} has another rank")
    sampler = {key.removeprefix(SAMPLER): value for key, value in tensors.items() if key.startswith(SAMPLER)}
    read = [key for key in tensors if key == MASKS or key.startswith(SAMPLER) or key.endswith((DOWN, UP))]
    refuse_unread(tensors, read, what)
    return AppleCheckpoint(name, masks, down, up, number(config, "lora_alpha", rank, what) / rank, sampler)
