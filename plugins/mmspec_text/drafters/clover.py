"""Drafts with a state that steps along the path by gated values of the drafted units: Clover, behind one block.

Xiao et al., arXiv 2405.00263, of which there are neither weights nor code; its authors' second version has code
(github.com/XiaoBin1992/clover). With the cell of `clover-2`:

    g = norm(decoder layer(h_t), over all known rows t)
    s_0 = cell(g at the root's row, root);  s_i = cell(s_{i-1}, unit i)
    logits behind the root, and behind unit i: O norm'(s_i + silu(M_i s_i))

From the paper, by its abstract and by notes on it, since its text could not be read here: the regressive connection,
one attention decoder for all steps (the cell), an augmenting block of one layer over the target's states, a projection
for every step, three steps. Chosen: the cell's formula, the norms, `h_t` *before* the target's final norm, and units
read as rows of the target's output layer, are version 2's; the first step reads the target's own token, the root; a
projection is Medusa's block, begun at zero, of which version 2's class has the first lines left.
Layout `clover`, ours: `layers.{i}.*`, `clover_norm`, `clover_head_mlp_rnn` (the cell), `clover_head_mlp.{i}` (M_i),
`clover_head_norm`, and in the config `clover.num_heads`, the units of a path.

The form `clover` is its tree for large batches, by the page of its authors' code: a node's children are its likeliest
units whose sum is at most 0.8, one at least, without those below a quarter of the best; of a level the n of the largest
joint probability are drafted, where n is 4 less what is drafted already. Nodes are chosen by their own units, as in
`rerank`, and by the target's own noise in sampled calls.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. A wrong head is lossless too, and slow: the first call tries it on the prompt and warns (`Clover.loaded`).
Knobs: `form` is the shape of the draft; more `nodes` find more, and every node costs.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from mmspec.core.drafters.shapes import Frontier, Level, Shape
from mmspec.core.drafters.shapes.best_first import BestFirst
from mmspec.core.drafters.shapes.siblings import likeliest
from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.slot_cache import SlotCache
from mmspec.registry.options import option
from mmspec_text.drafters.clover_2 import Cell, Clover2Sizes, CloverDrafter, augmented, read_family
from mmspec_text.drafters.heads.layers import DecoderLayer, HeadNetwork, looked_up
from mmspec_text.drafters.heads.pathwise.drafter import PathOptions
from mmspec_text.drafters.heads.pathwise.head import PathCheckpoint

TOP_P, QUARTER, SPREAD = 0.8, 0.25, 0.75
"""The sum of children's probabilities, the least of one over the best one's, and `rerank`'s spread in sampled calls."""


@dataclass(frozen=True)
class CloverTree(BestFirst):
    """The form `clover`; see the module."""

    nodes: int = 4  # nodes of the tree

    offers = frozenset({"tree"})
    needs = frozenset({"rerank"})

    @property
    def children(self) -> int:  # type: ignore[override]
        return self.nodes

    def level(self, frontier: Frontier, depth: int) -> Level:
        best, own = likeliest(frontier, self.nodes, SPREAD)
        chance = own.exp()
        kept = (chance.cumsum(-1) <= TOP_P) & (chance >= QUARTER * chance[..., :1])
        kept[..., 0] = True
        joint = (frontier.score[..., None] + own.masked_fill(~kept, -torch.inf)).flatten(1)
        score, place = joint.topk(min(self.nodes, joint.shape[1]), -1)
        left = torch.full_like(place[:, 0], self.nodes) if frontier.carried is None else frontier.carried
        valid = (torch.arange(place.shape[1], device=place.device) < left[:, None]) & (score > -torch.inf)
        units, parent = best.flatten(1).gather(1, place), place // best.shape[-1]
        return Level(units, parent, score.masked_fill(~valid, -torch.inf), valid, carried=left - valid.sum(1))


@dataclass(frozen=True)
class CloverOptions(PathOptions):
    """Options of `clover`."""

    form: Literal["clover", "chain", "rerank", "greedy", "heap", "branching", "beam"] = option(  # type: ignore[assignment]
        "clover", "which nodes to draft; clover, rerank, greedy: rules match and relaxed, the others: any"
    )
    nodes: Annotated[int, Field(ge=1, le=512)] = option(
        4, "clover, rerank, greedy, heap: nodes that are verified; more are accepted, and each costs"
    )

    def build_shape(self) -> Shape:
        return CloverTree(self.nodes) if self.form == "clover" else super().build_shape()


class CloverNetwork(HeadNetwork):
    """See the module. It is a `PrefixHead`; a node's state is s_i."""

    def __init__(self, a: Clover2Sizes, vocab: int) -> None:
        super().__init__(a.block)
        width = a.target_hidden
        self.units, self.vocab, self.depth = a.units, vocab, a.layers
        self.layers = nn.ModuleList(DecoderLayer(a.block) for _ in range(a.layers))
        self.clover_norm, self.clover_head_norm = (nn.RMSNorm(width, a.block.eps) for _ in range(2))
        self.clover_head_mlp_rnn = Cell(a.block)
        self.clover_head_mlp = nn.ModuleList(nn.Linear(width, width) for _ in range(a.units))

    def taken_in(self, features: Tensor) -> Tensor:
        return features.to(self.dtype)

    def passed(self, units: Tensor, states: Tensor, slots: SlotCache, geometry: PassGeometry) -> Tensor:
        return self.rooted(augmented(self, states, slots, geometry), units)

    def rooted(self, features: Tensor, units: Tensor) -> Tensor:
        stepped: Tensor = self.clover_head_mlp_rnn(features, looked_up(units, self.of_target(1), self.dtype))
        return stepped

    def followed(self, states: Tensor, units: Tensor, depth: int) -> Tensor:
        return self.rooted(states, units)

    def logits(self, states: Tensor, depth: int = 0) -> Tensor:
        mixed = states + F.silu(self.clover_head_mlp[depth](states))
        return self.over_target(self.of_target(1)(self.clover_head_norm(mixed)))


FORM = ("clover_head_mlp_rnn.q.weight", "clover_head_mlp.0.weight", "layers.0.self_attn.q_proj.weight")
"""Keys by which the layout is known."""


def read_first_clover(name: str) -> PathCheckpoint:
    """Read a head from a folder or the hub."""
    return read_family(name, "clover", CloverNetwork, FORM)


class Clover(CloverDrafter):
    """Drafts with a head of Clover."""

    kind = "clover"
    read = staticmethod(read_first_clover)

    def __init__(self, options: CloverOptions = CloverOptions()) -> None:
        super().__init__(options)
