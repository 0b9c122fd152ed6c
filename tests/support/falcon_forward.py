"""The forward of a head of Falcon, written out row by row: no cache, no batch. What our network is compared with.

Known rows see what is before them; the last block of them, and every block of a drafted path, sees itself whole.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.support.eagle_forward import WrittenOut, silu, turned

Row = tuple[Tensor, int]
"""A state and a unit."""


class FalconForward(WrittenOut):
    """A head of given weights."""

    block: int  # units that a pass scores

    def joined(self, state: Tensor, unit: int) -> Tensor:
        """Two cells of an LSTM, from nothing, over embedding and state."""
        x = torch.cat([self.embedding[unit], state])
        for layer in (0, 1):
            gates = self.w[f"lstm.weight_ih_l{layer}"] @ x
            for bias in (f"lstm.bias_ih_l{layer}", f"lstm.bias_hh_l{layer}"):
                gates = gates + self.w[bias] if bias in self.w else gates
            new, _, inner, out = gates.chunk(4)  # the second gate forgets what was before, and nothing was
            x = torch.sigmoid(out) * torch.tanh(torch.sigmoid(new) * torch.tanh(inner))
        return x

    def run(self, rows: Sequence[Row], seen: Sequence[int]) -> list[Tensor]:
        """The prediction of the head at every row; row i sees the first `seen[i]` rows."""
        us = [self.joined(state.double(), unit) for state, unit in rows]
        number = 0
        while f"layers.{number}.self_attn.q_proj.weight" in self.w:
            name = f"layers.{number}.input_layernorm"
            xs = [self.normed(name, u) for u in us] if f"{name}.weight" in self.w else us
            us = self.attended(number, xs, us, seen)
            number += 1
        return us

    def attended(self, number: int, xs: Sequence[Tensor], us: Sequence[Tensor], seen: Sequence[int]) -> list[Tensor]:
        f, name = self.f, f"layers.{number}"
        queries, keys, values = (
            [self.linear(f"{name}.self_attn.{part}_proj", x).view(-1, f.head_dim) for x in xs] for part in "qkv"
        )
        queries, keys = (
            [[turned(head, position, f.theta) for head in row] for position, row in enumerate(made)]
            for made in (queries, keys)
        )
        found = []
        for position, u in enumerate(us):
            parts = []
            for head in range(f.heads):
                group = head * f.key_heads // f.heads
                scores = torch.stack([queries[position][head] @ keys[j][group] for j in range(seen[position])])
                weights = (scores / f.head_dim**0.5).softmax(0)
                parts.append(sum(w * values[j][group] for j, w in enumerate(weights)))
            u = u + self.linear(f"{name}.self_attn.o_proj", torch.cat(parts))
            inner = self.normed(f"{name}.post_attention_layernorm", u)
            gate, up = self.linear(f"{name}.mlp.gate_proj", inner), self.linear(f"{name}.mlp.up_proj", inner)
            found.append(u + self.linear(f"{name}.mlp.down_proj", silu(gate) * up))
        return found

    def draft_logits(self, features: Tensor, units: Sequence[int], path: Sequence[int]) -> list[Tensor]:
        """Logits after the known rows, and after every unit of a drafted path; arguments as in `WrittenOut`."""
        k, rows = self.block, list(zip(features, units, strict=True))
        seen = [i + 1 for i in range(len(rows) - k)] + [len(rows)] * k
        found, block = list[Tensor](), list[Tensor]()
        for first in range(0, len(path) + 1, k):
            if first:
                rows += list(zip(block, path[first - k : first], strict=True))
                seen += [len(rows)] * k
            block = self.run(rows, seen)[-k:]
            found += [self.logits(state) for state in block]
        return found[: len(path) + 1]
