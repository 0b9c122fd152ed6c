"""Token recycling: the likeliest successors of every token in the target's latest scores, drafted as a static tree.

Luo et al., arXiv 2408.08696. A matrix M `[vocab, width]` holds for each token the top `width` of the target's scores
after it, from the last pass in which the token was a node, accepted or not. The draft is a tree of fixed shape: a node
is M[its parent's token, its rank], level by level, with gathers only. Scores of refused nodes are used too.
Guarantee: drafts are point masses and siblings are distinct; exact under every rule that takes trees of point masses.
Differences from the published code: tokens that no pass has scored propose nothing (published: token 0); a token at
several nodes takes the last one's scores, rows in order (published: the order is undefined); the prompt is used; the
tree is the best one for the measured chance of every rank (published: a template, `nodes="released"` with `k=6`).
Knobs: more `nodes` accept more and cost more per pass; a larger `width` lets the tree grow broader; `k` is its depth.

`RATES` was measured on `mmspec/text-14m`: depth 2, all eight children of every node of the accepted path, 120 new
tokens after 160 tokens of each of 16 held-out modules and after the two prompts of `mmspec demo text`, greedy and at
temperature 0.8; the mean of the four (rank 0: 0.35, 0.15, 0.55, 0.33; rank 1: 0.08, 0.06, 0.13, 0.12).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.compile.protocols import InsideDrafts
from mmspec.core.drafters.static_tree import counted_tree, levels_of, likeliest_tree
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.transfer import moved, on_device
from mmspec.core.types import Draft, Step
from mmspec.registry.options import option
from mmspec_text.specs import TOKEN_RECYCLING

RATES = (0.345, 0.097, 0.039, 0.029, 0.027, 0.018, 0.016, 0.014)
"""The chance that the child of a rank is accepted, for nodes with all eight children."""
TEMPLATE = (
    *(8,),
    *(8, 4, 3, 2, 1, 1, 1, 1),
    *(8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0),
    *(5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0),
    *(3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0),
    *(2, 0, 0, 1),
)
"""The released tree of 80 nodes (Luowaterbi/TokenRecycling: template 2.2.2): how many children the root has, then every
node in their order, level by level; none behind the last one that is listed. Children have the ranks from 0 on.
"""
Levels = Sequence[tuple[Tensor, Tensor]]
"""For every level of a tree its nodes' parents, with the root as node 0, and their ranks."""


@dataclass(frozen=True)
class TokenRecyclingOptions:
    """Options of `token-recycling`."""

    nodes: Annotated[int, Field(ge=1, le=256)] | Literal["released"] = option(
        8, "tokens per draft: more accept more and cost more per pass; released: the published tree of 80"
    )
    width: Annotated[int, Field(ge=1, le=32)] = option(8, "successors that are remembered for every token")


def most_nodes(options: TokenRecyclingOptions) -> int:
    """The nodes of a whole tree."""
    return sum(TEMPLATE) if options.nodes == "released" else options.nodes


class TokenRecycling:
    """Drafts a tree from the target's earlier scores, those of earlier calls included."""

    needs, offers = TOKEN_RECYCLING.needs, TOKEN_RECYCLING.offers
    everywhere = False

    def __init__(self, options: TokenRecyclingOptions = TokenRecyclingOptions()) -> None:
        self.options = options
        self._rates: tuple[float, ...] = ()
        self._rows = torch.empty(0, options.width, dtype=torch.int32, device="cpu")

    @property
    def matrix(self) -> Tensor:
        """M: `[vocab, width]` int32, likeliest first; -1 for unknown successors."""
        return self._rows[:-1]

    def bind(self, target: Target) -> None:
        assert target.vocab is not None
        width = min(self.options.width, target.vocab)
        self._rates = tuple(_rate(rank) for rank in range(width))
        with torch.inference_mode(False):  # calls inside and outside of inference mode write to M
            # One more row than ids takes the masked writes, so that no shape depends on data.
            self._rows = torch.full((target.vocab + 1, width), -1, dtype=torch.int32, device="cpu")

    def width(self, k: int) -> int:
        return len(self._tree(k)[0])

    def start(self, state: State, inputs: Any) -> Any:
        with torch.inference_mode(False):
            self._rows = moved(self._rows, state.root.device)
        if state.step is not None:
            self.observe(state, state.step)
        self._seed(state)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        parents, ranks = self._tree(k)
        return _drafted(self._rows, state.root, parents, *_level_tables(parents, ranks, state.root.device))

    def observe(self, state: State, step: Step) -> None:
        _note(self._rows, step)

    def inside(self, k: int, state: State) -> "RecyclingInside":
        return RecyclingInside(self, k, state.root.device)

    def fits_inside(self, state: State) -> bool:
        return True

    def _seed(self, state: State) -> None:
        """Give tokens of the prompt that were never scored one successor: the one of their last occurrence.

        A prompt may have ids that are never scored: a model's output layer may have fewer ids than its embedding.
        """
        seen = state.history[:, : state.prompt_length + 1]
        order = torch.arange(state.prompt_length, device=seen.device)
        token, successor = seen[:, :-1].flatten(), seen[:, 1:].flatten()
        scored = torch.maximum(token, successor) < len(self._rows) - 1
        token = torch.where(scored, token, len(self._rows) - 1)
        fresh = scored & (order >= state.pads[:, None]).flatten() & (self._rows[token, 0] < 0)
        nothing = successor.new_full((len(successor), self._rows.shape[1] - 1), -1)
        _write(self._rows, token, torch.cat([successor[:, None], nothing], 1), fresh)

    def _tree(self, k: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self.options.nodes == "released":
            return counted_tree(TEMPLATE, k, len(self._rates))
        return likeliest_tree(self._rates, k, self.options.nodes)


class RecyclingInside(InsideDrafts):
    """`TokenRecycling` inside a captured round."""

    def __init__(self, drafter: TokenRecycling, k: int, device: torch.device) -> None:
        self.key, self._rows = drafter.options, drafter._rows
        self.parents, ranks = drafter._tree(k)
        self._levels, self._scores = _level_tables(self.parents, ranks, device)

    def reserve(self, state: State) -> None:
        with torch.inference_mode(False):
            self._rows = torch.full_like(self._rows, -1)

    def load(self, drafter: TokenRecycling, state: State) -> None:
        self._rows.copy_(drafter._rows)

    def unload(self, drafter: TokenRecycling, state: State) -> None:
        drafter._rows.copy_(self._rows)

    def propose(self, live: Live, noise: DraftNoise) -> Draft:
        return _drafted(self._rows, live.root, self.parents, self._levels, self._scores)

    def observe(self, live: Live, step: Step) -> None:
        _note(self._rows, step)


def _drafted(rows: Tensor, root: Tensor, parents: Sequence[int], levels: Levels, scores: Tensor) -> Draft:
    """The tree below `root [batch]`; nodes whose successor M, `rows`, does not know are invalid."""
    units = root[:, None]
    for above, rank in levels:
        parent = units[:, above]  # in `units`, the root is node 0
        successor = rows[parent.clamp(min=0), rank].long()
        units = torch.cat([units, torch.where(parent >= 0, successor, -1)], 1)
    units = units[:, 1:]
    return Draft.tree(units.clamp(min=0), parents, valid=units >= 0, score=scores.expand_as(units))


def _note(rows: Tensor, step: Step) -> None:
    """Write the top of every scored node's scores into M; the last node of equal tokens counts."""
    logits = step.scores.logits
    if logits is None:
        return
    scored = step.draft.valid & (step.count > 0)[:, None]
    best = logits.topk(rows.shape[1], -1)
    successors = torch.where(best.values.isneginf(), -1, best.indices)  # [batch, node, width]
    _write(rows, step.draft.units.flatten(), successors.flatten(0, 1), scored.flatten())


def _write(rows: Tensor, tokens: Tensor, successors: Tensor, wanted: Tensor) -> None:
    """M[tokens] = successors where `wanted`; `[n]`, `[n, width]`, `[n]`. The last of equal tokens always wins."""
    scratch = len(rows) - 1
    tokens = torch.where(wanted, tokens, scratch)
    order = torch.arange(len(tokens), device=tokens.device)
    last = torch.zeros_like(rows[:, 0], dtype=torch.int64).scatter_reduce_(0, tokens, order, "amax")
    rows[torch.where(last[tokens] == order, tokens, scratch)] = successors.to(rows.dtype)


def _rate(rank: int) -> float:
    """The chance that the child of a rank is accepted; beyond the measured ranks it falls like 1 / rank."""
    return RATES[rank] if rank < len(RATES) else RATES[-1] * len(RATES) / (rank + 1)


@lru_cache(maxsize=64)
def _level_tables(parents: tuple[int, ...], ranks: tuple[int, ...], device: torch.device) -> tuple[Levels, Tensor]:
    """The levels of the tree, and the log probabilities of reaching its nodes: `[1, node]`."""
    scores = list[float]()
    for parent, rank in zip(parents, ranks, strict=True):
        scores.append((scores[parent] if parent >= 0 else 0.0) + math.log(_rate(rank)))
    levels = [
        (on_device([parents[i] + 1 for i in level], device), on_device([ranks[i] for i in level], device))
        for level in levels_of(parents)
    ]
    return levels, on_device([scores], device, torch.float32)
