"""Drafts with a state that steps along the path, by attention over its own earlier states: after Clover's papers.

Xiao et al., arXiv 2405.00263 (Clover) and 2408.00264 (Clover-2). An *augmenting block*, one decoder layer, reads the
target's last states; the *regressive connection* feeds every drafted unit to the next speculator; the *attention
decoder* merges its embedding with the states before.
The cell here is ours, from the papers alone. The authors' code (Clover-2,
github.com/XiaoBin1992/clover) has another one: W_v E(unit), scaled head by head with the cosine of W_q norm(state) and
W_k E(unit), is added to the state, and an MLP of [state, embedding] follows. So no checkpoint of theirs loads.
A checkpoint of ours holds the augmenting block, one cell (Clover-2) or one for each depth (Clover), and a norm;
embedding and output layer are the target's.

    s_0 = g, the augmenting block's state of all features so far
    s_{i+1} = s_i + attention(query: norm(E(unit i)); keys and values: norm(s_0), …, norm(s_i), norm(E(unit i)))
    logits of the unit i + 1 behind the root = the target's output layer of norm(s_{i+1})

Unit 0 is the root. Layout: `augmenting.*` is a decoder layer by transformers' names; `norm.weight`;
`cells.{depth}.{state_norm,token_norm,q_proj,k_proj,v_proj,o_proj}.weight`, one or one for each depth. The config has
`num_speculators`, `num_attention_heads` and `vocab_size`.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. Wrong heads are lossless too, and slow: the first call tries them on the prompt and warns (`Clover.loaded`).
Knobs: `form` is the shape of the draft; a larger `width` and more `nodes` find more, and every node costs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.slot_cache import SlotCache
from mmspec_text.drafters.heads.layers import Block, BlockSizes, HeadNetwork, embedded
from mmspec_text.drafters.heads.pathwise.checkpoint import PathCheckpoint, PathSizes
from mmspec_text.drafters.heads.pathwise.drafter import PathDrafter
from mmspec_text.drafters.heads.stored import stored_head
from mmspec_text.drafters.heads.values import counted, part_numbers, positive
from mmspec_text.drafters.heads.vocabulary import over_target


@dataclass(frozen=True, kw_only=True)
class CloverSizes(PathSizes):
    """The shape of the speculators."""

    block: BlockSizes  # the augmenting block; the cells have its heads
    cells: int  # 1, or one for each depth


class CloverNetwork(HeadNetwork):
    """See the module. It is a `PrefixHead`; a node's state is s_0, …, s_{depth + 1}, one behind the other."""

    depth = 1

    def __init__(self, a: CloverSizes, vocab: int) -> None:
        super().__init__()
        self.units, self.vocab, self._width = a.units, vocab, a.target_hidden
        self.augmenting = Block(a.block)
        self.cells = nn.ModuleList(Cell(a.block) for _ in range(a.cells))
        self.norm = nn.RMSNorm(a.target_hidden, a.block.eps)

    def taken_in(self, features: Tensor) -> Tensor:
        return features.to(self.dtype)

    def passed(self, units: Tensor, states: Tensor, slots: SlotCache, geometry: PassGeometry) -> Tensor:
        return self.rooted(self.augmenting.over(states, slots, geometry), units)

    def rooted(self, features: Tensor, units: Tensor) -> Tensor:
        return self.followed(features, units, 0)

    def followed(self, states: Tensor, units: Tensor, depth: int) -> Tensor:
        tokens = embedded(units, self._shared[0], states.dtype)
        new = self.cells[min(depth, len(self.cells) - 1)](states.unflatten(-1, (-1, self._width)), tokens)
        return torch.cat([states, new], -1)

    def logits(self, states: Tensor, depth: int = 0) -> Tensor:
        return over_target(self._shared[1](self.norm(states[..., -self._width :])), None, self.vocab)


class Cell(nn.Module):
    """One step along a path."""

    def __init__(self, a: BlockSizes) -> None:
        super().__init__()
        self.head_dim = a.head_dim
        self.state_norm, self.token_norm = nn.RMSNorm(a.hidden, a.eps), nn.RMSNorm(a.hidden, a.eps)
        self.q_proj = nn.Linear(a.hidden, a.heads * a.head_dim, bias=False)
        self.k_proj = nn.Linear(a.hidden, a.heads * a.head_dim, bias=False)
        self.v_proj = nn.Linear(a.hidden, a.heads * a.head_dim, bias=False)
        self.o_proj = nn.Linear(a.heads * a.head_dim, a.hidden, bias=False)

    def forward(self, states: Tensor, tokens: Tensor) -> Tensor:
        """The next state `[batch, node, hidden]`.

        Args:
            states: `[batch, node, step, hidden]`: those of the path so far.
            tokens: `[batch, node, hidden]`: embeddings of the units.
        """
        token = self.token_norm(tokens)[:, :, None]
        seen = torch.cat([self.state_norm(states), token], 2)
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(2, 3)  # [batch, node, head, step, width]
            for project, x in ((self.q_proj, token), (self.k_proj, seen), (self.v_proj, seen))
        )
        out = nn.functional.scaled_dot_product_attention(query, key, value)
        new: Tensor = states[:, :, -1] + self.o_proj(out.transpose(2, 3).flatten(2))
        return new


FORMS = {"clover": ("augmenting.self_attn.q_proj.weight", "cells.0.q_proj.weight", "norm.weight")}
MOST = 64
"""Speculators that one cell may stand for."""


def read_clover(name: str) -> PathCheckpoint:
    """Read speculators.

    Args:
        name: A folder, or a hub name.

    Raises:
        ValueError: There are none, they are damaged, or in another layout.
    """
    stored = stored_head(name, "a Clover", lambda key: key)
    config, headers, what = stored.config, stored.headers, stored.what
    if any(key not in headers for key in FORMS["clover"]):
        raise stored.no_layout(FORMS)
    block = BlockSizes.of(stored, "augmenting.")
    cells = counted(part_numbers(headers, "cells."), {}, (), what)
    units = positive(config, "num_speculators", what)
    if units > MOST or cells not in (1, units):
        raise ValueError(f"{what} has {cells} cells for {units} speculators (num_speculators, at most {MOST})")
    vocab = positive(config, "vocab_size", what)
    sizes = CloverSizes(units, block.hidden, block.hidden, vocab, vocab, own_embedding=False, block=block, cells=cells)
    with torch.device("meta"):
        wanted = CloverNetwork(sizes, 1).state_dict().keys()
    weights, ignored = stored.weights(wanted)
    return PathCheckpoint(
        name, "clover", sizes, CloverNetwork, weights, ignored, ("embed_tokens.weight", "lm_head.weight")
    )


class Clover(PathDrafter):
    """Drafts with speculators after Clover's papers."""

    kind = "clover"
    read = staticmethod(read_clover)
