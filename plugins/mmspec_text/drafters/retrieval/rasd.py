"""`rasd`: a smaller model's tree, and what a datastore of texts adds to it.

RASD (arXiv 2503.03434): a retrieved tree (`rest`) is pruned to continuations whose first unit the small
model drafts, too, and fused with its tree by their longest common prefixes. The paper's text
could not be read, only its summary: the pruning by the small model's best next units, and the score of a retrieved
node, its first unit's probability times the share of the retrieved texts, are ours.
Guarantee: drafts are point masses, and the small model chooses nodes by their units: exact under `match`.
Knobs: those of `draft-tree` (`form="rerank"`) and of `rest`; `retrieved` (nodes that the datastore adds at most).
"""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
from pydantic import Field

from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Drafter
from mmspec.core.state import State
from mmspec.core.transfer import on_device
from mmspec.core.types import Draft
from mmspec.kits.text.small_model import SmallModelOptions
from mmspec_text.drafters.draft_tree import DraftTreeOptions, TextDraftTree
from mmspec_text.drafters.retrieval.rest import Datastore, Rest, RestOptions
from mmspec_text.drafters.two_drafters import TwoDrafters, own_memory
from mmspec_text.specs import RASD


@dataclass(frozen=True)
class RasdOptions(Datastore, SmallModelOptions):
    """Options of `rasd`."""

    form: Literal["rerank", "greedy"] = field(default="rerank", metadata={"help": "the small model's tree"})
    width: Annotated[int, Field(ge=1, le=64)] = field(
        default=4, metadata={"help": "the small model's nodes expanded per level, and children of each"}
    )
    nodes: Annotated[int, Field(ge=1, le=512)] = field(
        default=12, metadata={"help": "the small model's nodes that are verified"}
    )
    retrieved: Annotated[int, Field(ge=1, le=512)] = field(
        default=8, metadata={"help": "nodes that the datastore adds at most"}
    )


class United(TwoDrafters):
    """The tree of the first drafter, which gives scores, and what the second's adds to it: at most `most` nodes.

    Kept are paths of the second whose first unit the first drafter proposes, too; a node that both have is one node. Of
    the others the best are added behind the first drafter's nodes, by the first drafter's score of the path's first
    unit times the share of the second's that goes on so.
    """

    def __init__(self, first: Drafter, second: Drafter, most: int) -> None:
        super().__init__(first, second)
        self.most = most

    def width(self, k: int) -> int:
        return self.first.width(k) + self.most

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        with own_memory(state, 0):
            first = self.first.propose(state, k, noise)
        with own_memory(state, 1):
            second = self.second.propose(state, k, noise)
        if not first.units.shape[1] or not second.units.shape[1]:
            return first
        rows = zip(_listed(first), _listed(second), strict=True)
        deepest = max(first.index.deepest, second.index.deepest)  # a path of both is one of the second's
        return _behind(first, [added(*row, self.most) for row in rows], deepest)


Listed = list[tuple[int, int, float]]
"""A tree: unit, index of the parent (-1: the root), score of every node; -inf for nodes that are not valid."""


def added(first: Listed, second: Listed, most: int) -> Listed:
    """What a second tree adds to a first: its nodes' indices go on behind those of the first."""
    place = {(parent, unit): index for index, (unit, parent, score) in enumerate(first) if score > -math.inf}
    found: list[tuple[float, int, int, int]] = []  # score, then unit, parent and own index among all nodes
    at: dict[int, int] = {}  # of the second's nodes that are in the union: index there
    value: dict[int, float] = {}  # the union's score, less the second's, along a path
    for index, (unit, parent, score) in enumerate(second):
        above = -1 if parent < 0 else at.get(parent)
        if above is None or score == -math.inf:
            continue
        known = place.get((above, unit))
        if parent < 0:
            if known is None:
                continue  # the first drafter does not think of it
            value[index] = first[known][2] - score
        else:
            value[index] = value[parent]
        if known is None:
            known = len(first) + len(found)
            place[above, unit] = known
            found.append((score + value[index], unit, above, known))
        at[index] = known
    best = sorted(sorted(found, key=lambda node: -node[0])[:most], key=lambda node: node[3])
    new = {node[3]: len(first) + order for order, node in enumerate(best)}
    return [(unit, new.get(parent, parent), score) for score, unit, parent, _ in best]


def _listed(draft: Draft) -> list[Listed]:
    assert draft.score is not None, "the union of two trees goes by their scores"
    score = torch.where(draft.valid, draft.score, -torch.inf)
    parents = (draft.index.parent[:, 1:] - 1).expand(score.shape)
    read = torch.stack([draft.units, parents, score.float().view(torch.int32).long()]).cpu()  # one wait
    parts = (read[0].tolist(), read[1].tolist(), read[2].int().view(torch.float32).tolist())
    return [list(zip(*row, strict=True)) for row in zip(*parts, strict=True)]


def _behind(draft: Draft, trees: list[Listed], deepest: int) -> Draft:
    """A draft with the nodes of one more tree per row behind its own, of at most so many levels in all."""
    width = max(map(len, trees))
    if not width:
        return draft
    filled = [tree + [(0, -1, -math.inf)] * (width - len(tree)) for tree in trees]
    units, parents, score = (
        on_device([[node[part] for node in tree] for tree in filled], draft.units.device, dtype)
        for part, dtype in enumerate((torch.int64, torch.int64, torch.float32))
    )
    assert draft.score is not None
    own = (draft.index.parent[:, 1:] - 1).expand(len(units), -1)
    longer = Draft.tree(
        torch.cat([draft.units, units], 1),
        torch.cat([own, parents], 1),
        valid=torch.cat([draft.valid, score > -torch.inf], 1),
        deepest=deepest,
    )
    return replace(longer, score=torch.cat([draft.score, score], 1))


class Rasd(United):
    """Drafts with a smaller transformers model and a datastore.

    Raises:
        ValueError: No model or no corpus was named, or one of them cannot be loaded.
    """

    needs, offers = RASD.needs, RASD.offers

    def __init__(self, options: RasdOptions = RasdOptions()) -> None:
        texts = RestOptions(
            corpus=options.corpus,
            tokenizer=options.tokenizer,
            max_match=options.max_match,
            min_match=options.min_match,
            matches=options.matches,
            nodes=4 * options.retrieved,  # many are the model's already
        )
        tree = DraftTreeOptions(
            model=options.model,
            tokenizer=options.tokenizer,
            assistant_tokenizer=options.assistant_tokenizer,
            form=options.form,
            width=options.width,
            nodes=options.nodes,
        )
        super().__init__(TextDraftTree(tree), Rest(texts), options.retrieved)
