"""The parts that a gated LoRA adds to its target: mask tokens, a change of linear layers at them alone, a sampler.

With W a linear layer's weight, A and B of a few rows and columns:

    y = W x + 1[x is a mask's] · (α / r) · B A x
    s = norm(SiLU(P₁ [E(previous unit); z])),  logits = O norm'(SiLU(P₂ s)),  z a mask's state behind the final norm

E and O are the target's embedding and output layer. Rows that are no mask's are what `W x` is, to the bit: nothing is
added to them, and they see no mask.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec_text.drafters.heads.layers import HeadNetwork, embedded


class SamplerLayer(nn.Module):
    """A layer of the sampler, which has two."""

    def __init__(self, inside: int, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inside, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(F.silu(self.linear(x)))
        return out


class GatedNetwork(HeadNetwork):
    """See the module. It is a `Sequel`, whose scores are all its own.

    `sizes` are numbers that linear layers of the target read and write, by their names there.
    """

    def __init__(self, sizes: Mapping[str, tuple[int, int]], masks: int, hidden: int, rank: int, scale: float) -> None:
        super().__init__()
        self.names, self.rank, self.scale = tuple(sizes), rank, scale
        # Vectors of their own: a training loop gives matrices a weight decay
        self.masks = nn.ParameterList(nn.Parameter(torch.zeros(hidden)) for _ in range(masks))
        self.down = nn.ParameterList(nn.Parameter(torch.zeros(rank, read)) for read, _ in sizes.values())
        self.up = nn.ParameterList(nn.Parameter(torch.zeros(written, rank)) for _, written in sizes.values())
        self.sampler = nn.ModuleList((SamplerLayer(2 * hidden, hidden), SamplerLayer(hidden, hidden)))

    @property
    def embeddings(self) -> Tensor:
        """`[mask, hidden]`."""
        return torch.stack(list(self.masks))

    def unlike(self, model: nn.Module) -> list[str]:
        """The names that are no linear layers of these sizes in a live target."""
        layers, pairs = dict(model.named_modules()), zip(self.names, self.down, self.up, strict=True)
        sizes = {name: (down.shape[1], len(up)) for name, down, up in pairs}
        own = {name: layer for name, layer in layers.items() if isinstance(layer, nn.Linear)}
        return [n for n, size in sizes.items() if n not in own or size != (own[n].in_features, own[n].out_features)]

    def hooks(self, model: nn.Module, own: Callable[[], int | None]) -> list[tuple[nn.Module, Callable[..., Tensor]]]:
        """The layers of a live target that change, each with its hook.

        `own` says how many of the rows of the pass that runs are no masks', which come first; None: it has no masks.
        """

        def of(place: int) -> Callable[..., Tensor]:
            def changed(module: nn.Module, args: Any, output: Tensor) -> Tensor:
                first = own()
                if first is None:
                    return output
                if args[0].dim() != 3:
                    raise ValueError(f"{self.names[place]} reads tokens apart from their rows: which are masks is lost")
                down, up = self.down[place], self.up[place]
                more = F.linear(F.linear(args[0][:, first:].to(down.dtype), down), up) * self.scale
                return torch.cat([output[:, :first], output[:, first:] + more.to(output.dtype)], 1)

            return changed

        return [(model.get_submodule(name), of(place)) for place, name in enumerate(self.names)]

    def sampled(self, states: Tensor, units: Tensor) -> Tensor:
        """Logits `[batch, row, vocab]` of what follows `units [batch, row]`, at states `[batch, row, hidden]`."""
        before = embedded(units, self.of_target(0), self.dtype)
        states = torch.cat([before, states.to(self.dtype)], -1)
        for layer in self.sampler:
            states = layer(states)
        logits: Tensor = self.of_target(1)(states)
        return logits

    def forward(self, scored: Tensor, units: Tensor, states: Tensor, above: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.sampled(states, units), states[..., :0]
