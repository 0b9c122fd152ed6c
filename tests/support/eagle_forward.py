"""The forward of EAGLE heads, written out unit by unit: no cache, no mask, no batch. What our network is compared with.

A row is `(state, unit)`; rows of known units have a state from the target's features, drafted ones the state that the
head fed back at their parent. Positions count rows from 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Flags:
    """The settings in which versions differ."""

    hidden: int
    heads: int
    key_heads: int
    head_dim: int
    target_hidden: int
    third: bool = True
    has_fc: bool = True
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    theta: float = 10000.0
    eps: float = 1e-6
    window: int | None = None
    sinks: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean() + eps) * weight


def turned(x: Tensor, position: int, theta: float) -> Tensor:
    """Rotary positions of one head's vector: pairs (i, i + half)."""
    half = len(x) // 2
    out = torch.empty_like(x)
    for i in range(half):
        angle = position * theta ** (-2 * i / len(x))
        a, b = x[i], x[i + half]
        out[i] = a * math.cos(angle) - b * math.sin(angle)
        out[i + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


class WrittenOut:
    """A head of given weights, by the names of EAGLE-3 with `layers.0` for its layer."""

    def __init__(self, weights: Mapping[str, Tensor], flags: Flags, embedding: Tensor, output: Tensor) -> None:
        self.w, self.f = {key: value.double() for key, value in weights.items()}, flags
        self.embedding = self.w.get("embed_tokens.weight", embedding.double())
        self.output = self.w.get("lm_head.weight", output.double())

    def linear(self, name: str, x: Tensor) -> Tensor:
        out = self.w[f"{name}.weight"] @ x
        return out + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else out

    def normed(self, name: str, x: Tensor) -> Tensor:
        return norm(x, self.w[f"{name}.weight"], self.f.eps)

    def state(self, feature: Tensor) -> Tensor:
        """The state that a target's feature becomes."""
        f, feature = self.f, feature.double()
        if not f.third or not f.has_fc:
            return feature
        if f.norm_before_fc:
            feature = self.normed("input_norm", feature)
        if f.fc_norm:
            parts = feature.split(f.target_hidden)
            feature = torch.cat([self.normed(f"fc_norm.{i}", part) for i, part in enumerate(parts)])
        return self.linear("fc", feature)

    def fed_back(self, states: Sequence[Tensor], units: Sequence[int]) -> list[Tensor]:
        """The state that is fed back at every row of a path."""
        f, xs, residuals = self.f, [], []
        for state, unit in zip(states, units, strict=True):
            embedded = self.embedding[unit]
            if f.third:
                left = self.normed("layers.0.input_layernorm", embedded)
                has = "layers.0.hidden_norm.weight" in self.w
                right = self.normed("layers.0.hidden_norm", state) if has else state
                xs.append(torch.cat([left, right]))
                residuals.append(right if f.norm_before_residual else state)
            else:
                if "embedding_norm.weight" in self.w:
                    embedded = self.normed("embedding_norm", embedded)
                joined = self.joined(embedded, state)
                has = "layers.0.input_layernorm.weight" in self.w
                xs.append(self.normed("layers.0.input_layernorm", joined) if has else joined)
                residuals.append(joined)
        us = self.layer(0, xs, residuals)
        number = 1
        while f"layers.{number}.self_attn.q_proj.weight" in self.w:
            plain = f"layers.{number}.input_layernorm"
            name = plain if f"{plain}.weight" in self.w else f"layers.{number}.hidden_norm"
            us = self.layer(number, [self.normed(name, u) for u in us], us)
            number += 1
        return [self.normed("norm", u) for u in us] if f.norm_output else us

    def joined(self, embedded: Tensor, state: Tensor) -> Tensor:
        """Embedding and feature as EAGLE-1 joins them, or as FSPAD does, to whom a state is scored part and feature."""
        both = torch.cat([embedded, state[-self.f.target_hidden :]])
        if "fc.fc.weight" not in self.w:
            return self.linear("fc", both)
        joined = self.linear("fc.fc", both)
        inner = self.linear("fc.mlp.up_proj", self.normed("fc.post_attention_layernorm", joined))
        gate = self.activation(self.linear("fc.mlp.gate_proj", embedded))
        return joined + self.linear("fc.mlp.down_proj", gate * inner)

    def activation(self, x: Tensor) -> Tensor:
        return silu(x)

    def layer(self, number: int, xs: Sequence[Tensor], residuals: Sequence[Tensor]) -> list[Tensor]:
        f, name = self.f, f"layers.{number}"
        queries, keys, values = [], [], []
        for position, x in enumerate(xs):
            q, k, v = (self.linear(f"{name}.self_attn.{part}_proj", x) for part in "qkv")
            q, k = q.view(f.heads, f.head_dim), k.view(f.key_heads, f.head_dim)
            if f"{name}.self_attn.q_norm.weight" in self.w:
                q = torch.stack([self.normed(f"{name}.self_attn.q_norm", head) for head in q])
                k = torch.stack([self.normed(f"{name}.self_attn.k_norm", head) for head in k])
            queries.append([turned(head, position, f.theta) for head in q])
            keys.append([turned(head, position, f.theta) for head in k])
            values.append(v.view(f.key_heads, f.head_dim))
        out = []
        for position, residual in enumerate(residuals):
            far = position + 1 if f.window is None else f.window
            seen = [j for j in range(position + 1) if position - j < far or j < f.sinks]
            parts = []
            for head in range(f.heads):
                group = head * f.key_heads // f.heads
                scores = torch.stack([queries[position][head] @ keys[j][group] for j in seen]) / f.head_dim**0.5
                weights = torch.exp(scores - scores.max())
                weights = weights / weights.sum()
                parts.append(sum(w * values[j][group] for w, j in zip(weights, seen, strict=True)))
            u = residual + self.linear(f"{name}.self_attn.o_proj", torch.cat(parts))
            inner = self.normed(f"{name}.post_attention_layernorm", u)
            gate, up = self.linear(f"{name}.mlp.gate_proj", inner), self.linear(f"{name}.mlp.up_proj", inner)
            added = self.linear(f"{name}.mlp.down_proj", silu(gate) * up)
            out.append(torch.cat([u] * (len(added) // len(u))) + added)
        return out

    def logits(self, fed_back: Tensor) -> Tensor:
        """Logits over the head's own ids."""
        if "norm.weight" in self.w and not self.f.norm_output:
            fed_back = self.normed("norm", fed_back)
        return self.output @ fed_back[: self.output.shape[1]]

    def draft_logits(self, features: Tensor, units: Sequence[int], path: Sequence[int]) -> list[Tensor]:
        """Logits after the known rows, and after every unit of a drafted path.

        Args:
            features: `[row, width]` of the known rows.
            units: Their units; the last one is the root.
            path: Drafted units behind the root.
        """
        states, known = [self.state(feature) for feature in features], list(units)
        fed = self.fed_back(states, known)[-1]
        found = [self.logits(fed)]
        for unit in path:
            states, known = [*states, fed], [*known, unit]
            fed = self.fed_back(states, known)[-1]
            found.append(self.logits(fed))
        return found

    def parallel_logits(self, features: Tensor, units: Sequence[int], mask: int, depth: int) -> list[Tensor]:
        """Logits of P-EAGLE over the head's own ids, of the units up to `depth` places behind the root.

        Args:
            features: `[row, width]` of the known rows.
            units: Their units; the last one is the root.
            mask: The unit of rows that are not known.
            depth: Units that are scored.
        """
        unknown = self.state(self.w["mask_hidden"][0, 0])
        states = [*(self.state(feature) for feature in features), *[unknown] * (depth - 1)]
        fed = self.fed_back(states, [*units, *[mask] * (depth - 1)])
        return [self.logits(state) for state in fed[len(units) - 1 :]]
