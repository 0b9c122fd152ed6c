"""What is trained for masks in the target's pass, and how it is stored: mask embeddings, a gated LoRA, a sampler.

    gated LoRA: y = W x + I(x is a mask) · scale · B A x
    sampler:    logits = head(s2), s2 = norm(silu(linear(s1))), s1 = norm(silu(linear([E(unit before), z])))

z is the state of a mask that the target's output layer would read; `head` is that layer.

There is no official code and no published checkpoint. Files are named as PEFT names an adapter's:
`adapter_model.safetensors` with `mask_embeddings` `[mask, hidden]`, `base_model.model.{layer}.lora_A.weight` `[rank,
in]`, `….lora_B.weight` `[out, rank]`, `sampler.{linear,norm}.{0,1}.{weight,bias}`; `adapter_config.json` with `r` and
`lora_alpha`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.registry.printable import shown
from mmspec_text.drafters.heads.adapter import read_adapter, refuse_unread
from mmspec_text.drafters.heads.layers import HeadNetwork, embedded
from mmspec_text.drafters.heads.probes import gated
from mmspec_text.drafters.heads.stored import fitted
from mmspec_text.drafters.heads.values import number, positive


class GatedLora(nn.Module):
    """A LoRA over linear layers of a model, for the nodes of a pass that are masks; an `Adapter`.

    Args:
        down: `[rank, in]` by the name of a layer.
        up: `[out, rank]` likewise.
        scale: Factor of the change.
    """

    def __init__(self, down: Mapping[str, Tensor], up: Mapping[str, Tensor], scale: float) -> None:
        super().__init__()
        self.names, self.scale = tuple(down), scale
        self.down = nn.ParameterList(nn.Parameter(down[name], requires_grad=False) for name in self.names)
        self.up = nn.ParameterList(nn.Parameter(up[name], requires_grad=False) for name in self.names)
        self._changes = [self._changing(number) for number in range(len(self.names))]

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """A block in which its hooks are on the model; it acts where `gated` says so."""
        with ExitStack() as hooks:
            for name, change in zip(self.names, self._changes, strict=True):
                hooks.callback(model.get_submodule(name).register_forward_hook(change).remove)
            yield

    def weights(self) -> Sequence[Tensor]:
        return [*self.down, *self.up]

    def _changing(self, number: int) -> Any:
        """The hook on one of the layers; `to` may put other weights into the place of these."""

        def changed(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            nodes = gated(self)
            if nodes is None:
                return output
            if args[0].dim() != 3:
                raise ValueError(
                    f"the layer {self.names[number]} does not see nodes in their order, so that no LoRA of it can act "
                    "on masks alone"
                )
            masks = args[0][:, nodes:]
            down, up = self.down[number].to(masks), self.up[number].to(masks)
            change = F.linear(F.linear(masks, down), up) * self.scale
            return torch.cat([output[:, :nodes], output[:, nodes:] + change], 1)

        return changed


class Sampler(HeadNetwork):
    """The sampler head. It is a `Scorer` and a `Sequel`: all of its scores depend on the unit before."""

    def __init__(self, hidden: int, vocab: int) -> None:
        super().__init__()
        self.vocab = vocab
        self.linear = nn.ModuleList(nn.Linear(width, hidden) for width in (2 * hidden, hidden))
        self.norm = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))

    def scored(self, states: Tensor) -> Tensor:
        return states[..., :0]

    def forward(self, scored: Tensor, units: Tensor, states: Tensor, above: Tensor | None) -> tuple[Tensor, Tensor]:
        """As `Sequel`; children need nothing but their parent's unit."""
        state = torch.cat([embedded(units, self.of_target(0), states.dtype), states], -1)
        for linear, norm in zip(self.linear, self.norm, strict=True):
            state = norm(F.silu(linear(state)))
        logits: Tensor = self.of_target(1)(state)
        return logits[..., : self.vocab], state[..., :0]

    def over_target(self, scored: Tensor) -> Tensor:
        return scored


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
