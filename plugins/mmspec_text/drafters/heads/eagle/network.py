"""The network of an EAGLE head: one for all versions, driven by its `Architecture`.

    EAGLE-3: s = fc(feature); x = cat(norm(E), norm(s)); u = s + attention(x) + MLP; logits = head(norm(u)); next s = u
    EAGLE-1: s = fc(cat(E, feature));                    u = s + attention(s) + MLP; logits = head(u);       next f = u
    FSPAD:   j = fc(cat(E, feature)); s = j + down(silu(gate(E)) · up(norm(j)));    v = s + attention(s);
             u, f' = cat(v, v) + MLP, whose last matrix has two states of rows;      logits = head(u);       next f = f'

Names of parameters are the keys of checkpoints. The embedding and the output layer of the target are used where the
checkpoint has none; they are not parameters of the head.

LANTERN's drafters of LlamaGen (Jang et al., arXiv 2410.03355) are heads of EAGLE-1 whose units stand on the grid of a
picture. They turn queries and keys as their target does: half of a head's pairs with the row, half with the column; at
positions of the condition queries and keys vanish. A row of the head has the position of its unit, which is one place
behind the position of its feature. LlamaGen turns neighbouring numbers, and the stored weights are in that order; they
are reordered here for the turn of the two halves of a head, as in every other head of this family. Scores do not
change.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.slot_cache import SlotCache
from mmspec_text.drafters.heads.eagle.family import Architecture
from mmspec_text.drafters.heads.latent import LatentAttention, halved
from mmspec_text.drafters.heads.layers import Attention, HeadNetwork, Mlp, looked_up


class EagleNetwork(HeadNetwork):
    """See the module. It is a `Head`."""

    def __init__(self, architecture: Architecture, vocab: int) -> None:
        super().__init__(architecture)
        a = self.architecture = architecture
        self.depth, self.vocab = a.layers, vocab
        self.feeds_normed = a.norm_output  # some checkpoints say that their states are normalised, and they are not
        self.window, self.sinks = a.window, 0  # rows that attention covers, None: all; and first ones beside the window
        self.wide = a.wide  # layers without a window
        inside = a.width if a.fused else a.hidden + a.width
        self.lstm = Cells(inside, a.hidden, "lstm" in a.biases) if a.block > 1 else None
        if a.block == 1 and (not a.fused or a.projected):
            joined = nn.Linear(inside, a.hidden, bias="fc" in a.biases)
            self.fc = Sampled(a, joined) if a.sampled else joined
        self.input_norm = nn.RMSNorm(a.width, a.eps) if a.norm_before_fc else None
        norms = [nn.RMSNorm(a.target_hidden, a.eps) for _ in range(a.features if a.fc_norm else 0)]
        self.fc_norm = nn.ModuleList(norms)
        self.embedding_norm = nn.RMSNorm(a.hidden, a.eps) if a.embedding_norm else None
        self.layers = nn.ModuleList(Layer(a, first=number == 0) for number in range(a.layers))
        self.norm = nn.RMSNorm(a.hidden, a.eps) if a.final_norm else None
        self.embed_tokens = nn.Embedding(a.vocab, a.hidden) if a.own_embedding else None
        self.lm_head = nn.Linear(a.hidden, a.draft_vocab, bias=False) if a.own_output else None
        self.mask_hidden = nn.Parameter(torch.empty(1, 1, a.width)) if a.parallel else None

    def stand_on(self, table: Tensor) -> None:
        """Turn queries and keys as a target's grid does, `[position, width / 2, 2]` (`Lent.rotary`)."""
        self._rotary = (GridRotary(table),)

    def taken_in(self, features: Tensor) -> Tensor:
        features = features.to(self.dtype)
        a = self.architecture
        if self.input_norm is not None:
            features = self.input_norm(features)
        if a.fc_norm:
            parts = features.split(a.target_hidden, -1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(features) if a.fused and a.projected else features

    def passed(self, units: Tensor, states: Tensor, slots: SlotCache, geometry: PassGeometry) -> Tensor:
        inputs = looked_up(units, self.embed_tokens if self.embed_tokens is not None else self.of_target(0), self.dtype)
        if not self.architecture.fused:
            if self.embedding_norm is not None:
                inputs = self.embedding_norm(inputs)
            states = (self.fc if self.lstm is None else self.lstm)(torch.cat([inputs, self.predicted(states)], -1))
        angles = self._rotary[0](states, geometry.query)
        mask = self._mask(geometry, self.window)
        for number, (layer, kept) in enumerate(zip(self.layers, slots.layers, strict=True)):
            seen = self._mask(geometry, None) if number in self.wide else mask
            states = layer(inputs, states, angles, seen, kept)
        return self.norm(states) if self.feeds_normed and self.norm is not None else states

    def logits(self, states: Tensor) -> Tensor:
        return self.over_target(self.scored(states))

    def scored(self, states: Tensor) -> Tensor:
        """Logits over the head's own ids, `[batch, row, draft vocabulary]`."""
        if self.norm is not None and not self.feeds_normed:
            states = self.norm(states)
        if self.architecture.split:
            states = states[..., : self.architecture.hidden]
        scored: Tensor = self.output(self.lm_head)(states)
        return scored if self.architecture.scale == 1 else scored * self.architecture.scale

    def predicted(self, states: Tensor) -> Tensor:
        """The features `[…, width]` that states of an EAGLE-1 head stand for: of two outputs of a layer, the last."""
        return states[..., -self.architecture.width :]

    def unknown(self) -> Tensor:
        """The state `[hidden]` of units that are not known; of heads that draft all units in one pass."""
        assert self.mask_hidden is not None
        return self.taken_in(self.mask_hidden)[0, 0]

    def _mask(self, geometry: PassGeometry, window: int | None) -> Tensor | None:
        """`[batch, 1, row, slot]` bool: what a row sees; None: every slot."""
        if geometry.alone and (window is None or geometry.visible <= window):
            return None
        if window is None:
            return geometry.tree
        sinks = self.sinks

        def near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (query - key < window) | (key < sinks)

        return geometry.within(near)


class Layer(nn.Module):
    """A decoder layer; the first one of a fused head takes embeddings beside states."""

    def __init__(self, a: Architecture, first: bool) -> None:
        super().__init__()
        self.fused, self.raw_residual = first and a.fused, not a.norm_before_residual
        norms = a.first_norms if first else {a.deep_norm}
        self.input_layernorm = nn.RMSNorm(a.hidden, a.eps) if "input_layernorm" in norms else None
        self.hidden_norm = nn.RMSNorm(a.hidden, a.eps) if "hidden_norm" in norms else None
        inside = a.hidden * (2 if self.fused else 1)
        self.self_attn = Attention(a, inside) if a.latent is None else LatentAttention(a, a.latent, inside)
        self.post_attention_layernorm = nn.RMSNorm(a.hidden, a.eps)
        self.outputs = 2 if a.split else 1
        self.mlp = Mlp(a, self.outputs)

    def forward(self, embedded: Tensor, states: Tensor, angles: Any, mask: Tensor | None, kept: Any) -> Tensor:
        if self.fused:
            normed = states if self.hidden_norm is None else self.hidden_norm(states)
            first = embedded if self.input_layernorm is None else self.input_layernorm(embedded)
            read, residual = torch.cat([first, normed], -1), states if self.raw_residual else normed
        else:
            norm = self.input_layernorm if self.input_layernorm is not None else self.hidden_norm
            read, residual = states if norm is None else norm(states), states
        states = residual + self.self_attn(read, angles, mask, kept)
        added: Tensor = self.mlp(self.post_attention_layernorm(states))
        return torch.cat([states] * self.outputs, -1) + added if self.outputs > 1 else states + added


class Sampled(nn.Module):
    """FSPAD's feature sampling: what `fc` joins of embedding and feature, and a part of it that the embedding gates."""

    def __init__(self, a: Architecture, joined: nn.Linear) -> None:
        super().__init__()
        self.hidden, self.fc, self.mlp = a.hidden, joined, Mlp(a)
        self.post_attention_layernorm = nn.RMSNorm(a.hidden, a.eps)

    def forward(self, x: Tensor) -> Tensor:
        """States `[batch, row, hidden]` of what rows read, `[batch, row, inside]`: the embedding first."""
        joined: Tensor = self.fc(x)
        return joined + self.mlp(self.post_attention_layernorm(joined), x[..., : self.hidden])


class GridRotary(nn.Module):
    """Cosines and sines of rows, in the order of `turned`, by a table of the target's: `[position, width / 2, 2]`."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table.float(), persistent=False)

    def forward(self, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of rows at `positions [batch, row]`.

        Nobody reads rows behind the picture; they get the position of the last cell.
        """
        places = (positions + 1).clamp(max=len(self.table) - 1)
        pairs = self.table[places].to(states.dtype)  # [batch, row, width / 2, 2]
        cosines, sines = pairs.unbind(-1)
        return torch.cat([cosines, cosines], -1), torch.cat([sines, sines], -1)


def by_halves(weights: Mapping[str, Tensor], a: Architecture) -> dict[str, Tensor]:
    """Weights with the numbers of every head of queries and keys in halves: the first ones of all pairs, then the
    second ones.
    """
    ordered = dict(weights)
    for key, value in weights.items():
        for part, heads in (("self_attn.q_proj", a.heads), ("self_attn.k_proj", a.key_heads)):
            if part in key:
                ordered[key] = halved(value.unflatten(0, (heads, -1)), 1).flatten(0, 1).contiguous()
    return ordered


LAYERS = 2


class Cells(nn.Module):
    """The part that joins embedding and state in a head of Falcon: an LSTM that is run over every row alone.

    Of a cell that begins with nothing, the weights on its own past (`weight_hh`) and the gate that forgets do nothing:

        h = sigmoid(o) tanh(sigmoid(i) tanh(g)),   (i, f, g, o) = W x + b

    Parameters have the names that torch's LSTM gives them.
    """

    def __init__(self, inside: int, hidden: int, biased: bool) -> None:
        super().__init__()
        for layer in range(LAYERS):
            width = hidden if layer else inside
            self.register_parameter(f"weight_ih_l{layer}", nn.Parameter(torch.empty(4 * hidden, width)))
            for part in ("ih", "hh") if biased else ():
                self.register_parameter(f"bias_{part}_l{layer}", nn.Parameter(torch.empty(4 * hidden)))

    def forward(self, x: Tensor) -> Tensor:
        """States `[batch, row, hidden]` of what rows read, `[batch, row, inside]`."""
        named = dict(self.named_parameters())
        for layer in range(LAYERS):
            gates = F.linear(x, named[f"weight_ih_l{layer}"], named.get(f"bias_ih_l{layer}"))
            if f"bias_hh_l{layer}" in named:
                gates = gates + named[f"bias_hh_l{layer}"]
            new, _, inner, out = gates.chunk(4, -1)
            x = out.sigmoid() * (new.sigmoid() * inner.tanh()).tanh()
        return x
