"""The forward of DFlash heads, written out row by row: no cache, no mask, no batch. What our network is compared with.

Known units have a context vector each; a block is the root and masks. Positions count units from 0.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.support.eagle_forward import norm, silu, turned

Sees = Callable[[int, int, int], bool]
"""`(root's position, row's position, other position)`: whether a row of a block sees another row."""


def everything(root: int, row: int, other: int) -> bool:
    return True


@dataclass(frozen=True)
class BlockFlags:
    """The settings in which heads differ."""

    heads: int
    key_heads: int
    head_dim: int
    block: int
    mask_token: int
    sees: tuple[Sees, ...]
    from_root: bool = False
    sequel: str | None = None
    theta: float = 1_000_000.0
    eps: float = 1e-6
    scale: float = 1.0
    activation: Callable[[Tensor], Tensor] = silu


class BlockWrittenOut:
    """A head of given weights."""

    def __init__(self, weights: Mapping[str, Tensor], flags: BlockFlags, embedding: Tensor, output: Tensor) -> None:
        self.w = {key: value.double() for key, value in weights.items()}
        self.f = flags
        self.embedding = self.w.get("embed_tokens.weight", embedding.double())
        self.output = self.w.get("lm_head.weight", output.double())

    def linear(self, name: str, x: Tensor) -> Tensor:
        out = self.w[f"{name}.weight"] @ x
        return out + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else out

    def normed(self, name: str, x: Tensor) -> Tensor:
        return norm(x, self.w[f"{name}.weight"], self.f.eps)

    def block(self, features: Sequence[Tensor], root: int) -> list[Tensor]:
        """The states that score the units behind the root, one for each depth."""
        f = self.f
        known = [self.normed("hidden_norm", self.linear("fc", feature.double())) for feature in features]
        mask = self.w["mask_embedding"] if "mask_embedding" in self.w else self.embedding[f.mask_token]
        states = [self.embedding[root], *[mask] * (f.block - 1)]
        for number, sees in enumerate(f.sees):
            states = self.layer(number, known, states, sees)
        normed = [self.normed("norm", x) for x in states]
        return normed if f.from_root else normed[1:]

    def layer(self, number: int, known: Sequence[Tensor], states: Sequence[Tensor], sees: Sees) -> list[Tensor]:
        f, name, first = self.f, f"layers.{number}", len(known)
        rows = [self.normed(f"{name}.input_layernorm", x) for x in states]
        keys, values = [], []
        for position, x in enumerate([*known, *rows]):
            keys.append([turned(k, position, f.theta) for k in self.split(f"{name}.self_attn.k", x, f.key_heads)])
            values.append(self.linear(f"{name}.self_attn.v_proj", x).view(f.key_heads, f.head_dim))
        out = []
        for place, (state, x) in enumerate(zip(states, rows, strict=True)):
            position, parts = first + place, []
            seen = [j for j in range(len(keys)) if sees(first, position, j)]
            for head, raw in enumerate(self.split(f"{name}.self_attn.q", x, f.heads)):
                query, group = turned(raw, position, f.theta), head * f.key_heads // f.heads
                scores = torch.exp(torch.stack([query @ keys[j][group] for j in seen]) / f.head_dim**0.5)
                sink = self.w.get(f"{name}.self_attn.attention_sink_bias")
                total = scores.sum() + (torch.exp(sink[head]) if sink is not None else 0)
                parts.append(sum(s / total * values[j][group] for s, j in zip(scores, seen, strict=True)))
            u = state + self.linear(f"{name}.self_attn.o_proj", torch.cat(parts))
            inner = self.normed(f"{name}.post_attention_layernorm", u)
            gate, up = self.linear(f"{name}.mlp.gate_proj", inner), self.linear(f"{name}.mlp.up_proj", inner)
            out.append(u + self.linear(f"{name}.mlp.down_proj", f.activation(gate) * up))
        return out

    def split(self, name: str, x: Tensor, heads: int) -> list[Tensor]:
        parts = list(self.linear(f"{name}_proj", x).view(heads, self.f.head_dim))
        return [self.normed(f"{name}_norm", part) for part in parts] if f"{name}_norm.weight" in self.w else parts

    def draft_logits(self, features: Sequence[Tensor], root: int, path: Sequence[int]) -> list[Tensor]:
        """Logits over the head's own ids behind the root, and behind every unit of a drafted path.

        Args:
            features: Of the units before the root.
            root: The root.
            path: Drafted units, fewer than a block has.
        """
        return self.behind(self.block(features, root), root, path)

    def behind(self, states: Sequence[Tensor], root: int, path: Sequence[int]) -> list[Tensor]:
        """`draft_logits`, given what `block` returned."""
        carried = torch.zeros(self.w["markov_head.markov_w1.weight"].shape[1]).double() if self.f.sequel else None
        found = []
        for unit, state in zip([root, *path], states, strict=False):
            logits = self.output @ state * self.f.scale
            if carried is not None:
                change, carried = self.markov(unit, state, carried)
                logits = logits + change
            found.append(logits)
        return found

    def markov(self, unit: int, state: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
        before = self.w["markov_head.markov_w1.weight"][unit]
        if self.f.sequel == "gated":
            gate = self.linear("markov_head.gate_proj", torch.cat([state, before]))
            before = before / (1 + torch.exp(-gate))
        if self.f.sequel != "rnn":
            return self.linear("markov_head.markov_w2", before), carried
        rank = len(before)
        joint = self.linear("markov_head.joint_proj", torch.cat([carried, before, state]))
        gate = 1 / (1 + torch.exp(-joint[:rank]))
        carried = gate * carried + (1 - gate) * torch.tanh(joint[rank : 2 * rank])
        return self.linear("markov_head.markov_w2", torch.tanh(joint[2 * rank :])), carried
