"""Drafts with a state that steps along the path by gated values of the drafted units: Clover-2.

Xiao et al., arXiv 2408.00264, as the authors' code computes it (github.com/XiaoBin1992/clover). The first Clover
(2405.00263) is the method `clover`.

    cell:  state, unit → state + c ⊗ W_v e;  c = the cosine of W_q norm(state) and W_k e, attention head by head
    g = norm(decoder layers(first cell(h_t, x_{t+1})), over all known rows t)
    s_0 = g at the root's row;  s_i = second cell(s_{i-1}, unit i)
    logits behind the root = O norm'(M s_0);  behind unit i = O norm'(M' [s_i, e_i])

`h_t` is the target's state *before* its final norm, `e` an embedding of the head's own, O the target's output layer.
Layout `clover-2`: `clover_embed_tokens`, `clover_head_mlp_rnn` (first cell) and `clover_head_mlp_rnn2` with
`input_layernorm, q, k, v`; `layers.{i}.*`, `clover_norm`, `clover_head_mlp` (M), `clover_head_mlp2` (M'),
`clover_head_norm`; a copy of the target's `lm_head`. In the config `clover.num_heads` counts the units of a path; the
base of rotary positions is 10,000 whatever it says, as in the authors' class.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. A wrong head is lossless too, and slow: the first call tries it on the prompt and warns (`Clover2.loaded`).
Knobs: `form` is the shape of the draft; a larger `width` and more `nodes` find more, and every node costs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.hidden import Lends
from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.slot_cache import SlotCache
from mmspec_text.drafters.heads.entries import Entries, agree, counted, part_numbers, positive
from mmspec_text.drafters.heads.features import Features
from mmspec_text.drafters.heads.layers import BlockSizes, DecoderLayer, HeadNetwork
from mmspec_text.drafters.heads.pathwise.drafter import PathDrafter
from mmspec_text.drafters.heads.pathwise.head import PathCheckpoint, PathSizes
from mmspec_text.drafters.heads.stored import keys_of, stored_head


@dataclass(frozen=True, kw_only=True)
class Clover2Sizes(PathSizes):
    """The shape of a head."""

    block: BlockSizes  # of its decoder layers; the cells have their heads
    layers: int  # decoder layers


class Clover2Network(HeadNetwork):
    """See the module. It is a `PrefixHead`; a node's state is s_0 at the root, and [s_i, e_i] behind it."""

    def __init__(self, a: Clover2Sizes, vocab: int) -> None:
        super().__init__(a.block)
        width = a.target_hidden
        self.units, self.vocab, self.depth, self._width = a.units, vocab, a.layers, width
        self.clover_embed_tokens = nn.Embedding(a.vocab, width)
        self.clover_head_mlp_rnn, self.clover_head_mlp_rnn2 = Cell(a.block), Cell(a.block)
        self.layers = nn.ModuleList(DecoderLayer(a.block) for _ in range(a.layers))
        self.clover_norm, self.clover_head_norm = (nn.RMSNorm(width, a.block.eps) for _ in range(2))
        self.clover_head_mlp, self.clover_head_mlp2 = nn.Linear(width, width), nn.Linear(2 * width, width)

    def taken_in(self, features: Tensor) -> Tensor:
        return features.to(self.dtype)

    def passed(self, units: Tensor, states: Tensor, slots: SlotCache, geometry: PassGeometry) -> Tensor:
        states = self.clover_head_mlp_rnn(states, self.clover_embed_tokens(units))
        return self.rooted(augmented(self, states, slots, geometry), units)

    def rooted(self, features: Tensor, units: Tensor) -> Tensor:
        return features

    def followed(self, states: Tensor, units: Tensor, depth: int) -> Tensor:
        embedded = self.clover_embed_tokens(units)
        return torch.cat([self.clover_head_mlp_rnn2(states[..., : self._width], embedded), embedded], -1)

    def logits(self, states: Tensor, depth: int = 0) -> Tensor:
        mixed = (self.clover_head_mlp2 if depth else self.clover_head_mlp)(states)
        return self.over_target(self.of_target(1)(self.clover_head_norm(mixed)))


def augmented(network: Any, states: Tensor, slots: SlotCache, geometry: PassGeometry) -> Tensor:
    """States behind a network's decoder layers over all known rows, and its norm: `[batch, row, hidden]`."""
    angles = network._rotary[0](states, geometry.query)
    for layer, kept in zip(network.layers, slots.layers, strict=True):
        states = layer(states, angles, geometry.tree, kept)
    normed: Tensor = network.clover_norm(states)
    return normed


class Cell(nn.Module):
    """One step along a path."""

    def __init__(self, a: BlockSizes) -> None:
        super().__init__()
        self.heads, self.eps = a.heads, a.eps
        self.input_layernorm = nn.RMSNorm(a.hidden, a.eps)
        self.q, self.k, self.v = (nn.Linear(a.hidden, a.hidden) for _ in range(3))

    def forward(self, states: Tensor, embedded: Tensor) -> Tensor:
        """The next states `[…, hidden]` of states and embeddings of units, `[…, hidden]`."""
        made = self.q(self.input_layernorm(states)), self.k(embedded), self.v(embedded)
        query, key, value = (part.unflatten(-1, (self.heads, -1)) for part in made)
        out: Tensor = states + (value * F.cosine_similarity(query, key, -1, self.eps)[..., None]).flatten(-2)
        return out


EMBEDDING = "clover_embed_tokens.weight"
FORM = (EMBEDDING, "clover_head_mlp_rnn2.q.weight", "layers.0.self_attn.q_proj.weight")
"""Keys by which the layout is known."""
MOST = 64
"""Units of a path; there is one cell for all of them but the first."""


def read_clover(name: str) -> PathCheckpoint:
    """Read a head from a folder or the hub."""
    return read_family(name, "clover-2", Clover2Network, FORM)


def read_family(
    name: str, kind: Literal["clover", "clover-2"], make: Callable[[Clover2Sizes, int], nn.Module], form: Sequence[str]
) -> PathCheckpoint:
    """Read a head of a kind, whose network `make` makes and which is known by the keys `form`."""
    second = kind == "clover-2"
    stored = stored_head(name, f"a {kind.capitalize()}", lambda key: key, ("rotary_emb", "lm_head."))
    config, what = stored.config, stored.what
    if any(key not in stored.headers for key in form):
        raise stored.no_layout({kind: form})
    unread = ("rope_theta", "rope_parameters") if second else ()
    given = Entries({key: value for key, value in config.items() if key not in unread})
    block = BlockSizes.of(stored, "layers.0.", given)
    if block.hidden % block.heads or (second and block.hidden != block.heads * block.head_dim):
        raise ValueError(f"{what}: {block.heads} heads of {block.head_dim} numbers do not make its {block.hidden}")
    own = Entries(config.get("clover"))
    units = positive(own, "num_heads", f"{what} (clover)")
    if units > MOST:
        raise ValueError(f"{what} drafts {units} units (clover.num_heads), and the most is {MOST}")
    if not second:
        agree(own, {"num_heads": len(part_numbers(stored.headers, "clover_head_mlp."))}, f"{what} (clover)")
    layers = counted(part_numbers(stored.headers, "layers."), own, ("num_layers",), what)
    vocab = stored.matrix(EMBEDDING)[0] if second else positive(given, "vocab_size", what)
    sizes = Clover2Sizes(
        units, block.hidden, block.hidden, vocab, vocab, own_embedding=True, block=block, layers=layers
    )
    weights, ignored = stored.weights(keys_of(make, sizes))
    given.settle(what, "num_hidden_layers")
    own.settle(f"{what} (clover)", "decay_coefficient", "heads_coefficient")
    return PathCheckpoint(name, kind, sizes, make, weights, ignored, ("lm_head.weight",), stored=stored)


class CloverDrafter(PathDrafter):
    """Drafts with a head of the family, which reads the target's states before its final norm."""

    def _features_of(self, target: Lends) -> Features:
        return Features({"boundary": (target.layers(),)})


class Clover2(CloverDrafter):
    """Drafts with a head of Clover-2."""

    kind = "clover-2"
    read = staticmethod(read_clover)
