"""What is trained: mask embeddings, a LoRA that acts on masks alone, and the sampler.

    gated LoRA: y = W x + I(x is a mask) · scale · B A x
    sampler:    logits = head(s2), s2 = norm(silu(linear(s1))), s1 = norm(silu(linear([E(unit before), z])))

z is the state of a mask that the target's output layer would read; `head` is that layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec_text.drafters.heads.layers import embedded
from mmspec_text.drafters.heads.probes import gated


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


class Sampler(nn.Module):
    """The sampler head. It is a `Scorer` and a `Sequel`: all of its scores depend on the unit before."""

    def __init__(self, hidden: int, vocab: int) -> None:
        super().__init__()
        self.vocab = vocab
        self.linear = nn.ModuleList(nn.Linear(width, hidden) for width in (2 * hidden, hidden))
        self.norm = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self._shared: tuple[Any, Any] | None = None  # in a tuple, so that torch does not adopt them

    def join(self, embedding: nn.Module, output: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        """Go where the target is, and use its embedding and its output layer."""
        self.to(device, dtype)
        self._shared = embedding, output

    def scored(self, states: Tensor) -> Tensor:
        return states[..., :0]

    def forward(self, scored: Tensor, units: Tensor, states: Tensor, above: Tensor | None) -> tuple[Tensor, Tensor]:
        """As `Sequel`; children need nothing but their parent's unit."""
        assert self._shared is not None, "the sampler is bound to no target"
        embedding, output = self._shared
        state = torch.cat([embedded(units, embedding, states.dtype), states], -1)
        for linear, norm in zip(self.linear, self.norm, strict=True):
            state = norm(F.silu(linear(state)))
        logits: Tensor = output(state)
        return logits[..., : self.vocab], state[..., :0]

    def over_target(self, scored: Tensor) -> Tensor:
        return scored
