"""The forward of multi-token layers, written out column by column: no cache, no tree, no batch.

As the papers have it: depth k reads, in column t, the state of depth k - 1 in column t (of the target, for k = 0) and
the embedding of the unit t + 1 + k, and attends over the columns up to t. Blocks are transformers' own layers under
transformers' own eager attention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Flags:
    """The settings in which families differ."""

    hidden_first: bool = False
    zeroed: bool = False
    final: bool = True
    plus_one: bool = False
    window: int | None = None
    kind: str | None = None
    rotary: bool = True
    eps: str = "rms_norm_eps"


class WrittenOut:
    """Layers of given weights.

    Args:
        model: The target.
        blocks: A layer of transformers for every depth.
        own: The other weights, by `layers.{i}.`.
        flags: The family.
    """

    def __init__(self, model: Any, blocks: Sequence[Any], own: Mapping[str, Tensor], flags: Flags) -> None:
        self.model, self.blocks, self.own, self.f = model, blocks, own, flags
        self.eps = getattr(model.config.get_text_config(), flags.eps)
        self.table = own.get("layers.0.embedding.weight", model.get_input_embeddings().weight)

    def norm(self, depth: int, name: str, x: Tensor) -> Tensor:
        weight = self.own[f"layers.{depth}.{name}.weight"]
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps) * (weight + 1 if self.f.plus_one else weight)

    def joined(self, depth: int, column: int, state: Tensor, unit: int) -> Tensor:
        embedded = self.table[unit]
        if self.f.zeroed and column == 0 and depth == 0:
            embedded = torch.zeros_like(embedded)
        parts = [self.norm(depth, "embedding_norm", embedded), self.norm(depth, "hidden_norm", state)]
        x = torch.cat(parts[::-1] if self.f.hidden_first else parts)
        out = self.own[f"layers.{depth}.projection.weight"] @ x
        bias = self.own.get(f"layers.{depth}.projection.bias")
        return out if bias is None else out + bias

    def run(self, depth: int, columns: Sequence[Tensor]) -> list[Tensor]:
        """The block and the norm behind it, over all columns."""
        x, n = torch.stack(list(columns))[None], len(columns)
        place = torch.arange(n)
        seen = place[None] <= place[:, None]
        if self.f.window is not None:
            seen &= place[:, None] - place[None] < self.f.window
        mask = torch.zeros(1, 1, n, n).masked_fill(~seen, torch.finfo(torch.float32).min)
        positions = place[None] + depth + 1
        kind = () if self.f.kind is None else (self.f.kind,)
        more = (
            {"position_embeddings": self.model.get_decoder().rotary_emb(x, positions, *kind)} if self.f.rotary else {}
        )
        out = self.blocks[depth](x, attention_mask=mask, position_ids=positions, **more)
        out = out[0] if isinstance(out, Tensor) else out[0][0]
        return [self.norm(depth, "final_norm", row) if self.f.final else row for row in out]

    @torch.no_grad()
    def draft_logits(self, features: Tensor, units: Sequence[int], path: Sequence[int]) -> list[Tensor]:
        """Logits after the known units, and after every unit of a drafted path.

        Args:
            features: `[column, width]`: the target's states of the known units but the last.
            units: The known units but the first; the last one is the root.
            path: Drafted units behind the root.
        """
        found, states, text = [], list(features), [*units, *path]
        before: list[Tensor] = []
        last = len(self.blocks) - 1
        for depth in range(len(path) + 1):
            here = min(depth, last)
            # Beyond the last depth, it goes on from its own state: one more column.
            before = [*before, states[-1]] if depth > last else states
            rows = [self.joined(here, t, state, text[t + here]) for t, state in enumerate(before)]
            states = self.run(here, rows)
            found.append(self.model.get_output_embeddings().weight @ states[-1])
        return found
