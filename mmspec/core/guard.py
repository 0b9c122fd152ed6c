"""The form of a draft, as `Draft` documents it; another one is a fault of its drafter (`mmspec.core.proposer`).

Shapes and types are always checked. Unit ids and parents are checked where reading them is free (on the CPU); on other
devices wrong nodes are masked out on the device.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, Distribution, Grouped, Mixed, PointMass
from mmspec.core.state import State
from mmspec.core.types import Draft


def checked(draft: Any, state: State, vocab: int | None) -> Draft:
    """The draft, not rooted yet, without nodes whose id is outside the vocabulary or whose parent is wrong."""
    if not isinstance(draft, Draft):
        raise TypeError(form_error(draft, state.root))
    wrong = form_error(draft, state.root) or _distribution_error(draft, vocab)
    if wrong:
        raise ValueError(wrong)
    nodes = draft.units.shape[1]
    if nodes >= state.budget.width:
        raise ValueError(f"{nodes} nodes were drafted, and width() had said {state.budget.width - 1} at most")
    if not nodes:
        return draft
    made = draft.index.is_chain or draft.index.listed is not None  # such trees are right by construction
    draft = draft if made else _with_valid_parents(draft)
    return draft if vocab is None else _in_vocabulary(draft, vocab)


def form_error(draft: Any, root: Tensor) -> str:
    """The fault in the form of a draft, not rooted yet, behind roots `[batch, *unit]`; "" if nothing is."""
    if not isinstance(draft, Draft):
        return f"propose returned a {type(draft).__name__}, not a Draft (Draft.chain, Draft.tree, Draft.empty)"
    units = draft.units
    if units.dim() < 2 or units.shape[:1] != root.shape[:1] or units.shape[2:] != root.shape[1:]:
        return f"units have the shape {list(units.shape)} where roots have {list(root.shape)}: [batch, node, *unit]"
    if units.dtype != root.dtype or units.device != root.device:
        return f"units are {units.dtype} on {units.device}, roots {root.dtype} on {root.device}"
    rows, nodes = units.shape[:2]
    if nodes and (draft.index.nodes != nodes + 1 or len(draft.index.parent) not in (1, rows)):
        return f"{rows} rows of {nodes} units and {len(draft.index.parent)} trees of {draft.index.nodes - 1} nodes"
    for name, value in (("valid", draft.valid), ("score", draft.score)):
        if value is not None and tuple(value.shape) != (rows, nodes):
            return f"{name} has the shape {list(value.shape)} where there are {rows} rows of {nodes} nodes"
    if draft.valid.dtype != torch.bool:
        return f"valid is {draft.valid.dtype}, not bool"
    if isinstance(draft.distribution, Mixed) and tuple(draft.distribution.random.shape) != (rows, nodes):
        shape = list(draft.distribution.random.shape)
        return f"the distribution is mixed for {shape} where there are {rows} rows of {nodes} nodes"
    distribution = _drawn_from(draft)
    if isinstance(distribution, Categorical) and tuple(distribution.probs.shape[:2]) != (rows, nodes):
        return f"the distribution is {list(distribution.probs.shape[:2])} where there are {rows} rows of {nodes} nodes"
    return ""


def _distribution_error(draft: Draft, vocab: int | None) -> str:
    """The reason why a draft's distribution does not suit the target's units; "" if it does."""
    distribution = _drawn_from(draft)
    if distribution is None or isinstance(distribution, PointMass):
        return ""
    if isinstance(distribution, Categorical) != (vocab is not None):
        return f"a draft's distribution is a {type(distribution).__name__}, and the target's units are of another kind"
    if not isinstance(distribution, Categorical):
        return ""
    if distribution.size != vocab:
        return f"the distribution is over {distribution.size} unit ids, and the target has {vocab}"
    if distribution.ids is not None and _readable(distribution.ids):
        outside = distribution.ids[(distribution.ids < 0) | (distribution.ids >= distribution.size)]
        if len(outside):
            return f"the distribution has the id {int(outside[0])}; ids are 0 … {distribution.size - 1}"
    return ""


def _drawn_from(draft: Draft) -> Distribution | None:
    distribution = draft.distribution
    return distribution.distribution if isinstance(distribution, Mixed | Grouped) else distribution


def _with_valid_parents(draft: Draft) -> Draft:
    """A tree without nodes that precede their parent, have no parent, or are deeper than the tree claims."""
    index = draft.index
    order = torch.arange(1, index.nodes, device=index.parent.device)
    parent, depth = index.parent[:, 1:], index.depth[:, 1:]
    right = (parent >= 0) & (parent < order) & (depth <= index.deepest)
    if _readable(right):
        if not bool(right.all()):
            raise ValueError(f"parents must precede their children, got {(index.parent[~right.all(1)][0, 1:] - 1)}")
        return draft
    parents = torch.cat([index.parent[:, :1], torch.where(right, parent, 0)], 1)
    bounded = replace(index, parent=parents, depth=index.depth.clamp(0, index.deepest))
    return replace(draft, index=bounded, valid=draft.valid & right)


def _in_vocabulary(draft: Draft, vocab: int) -> Draft:
    """A draft whose nodes all have an id of the vocabulary; other nodes are marked invalid."""
    units = draft.units
    inside = (units >= 0) & (units < vocab)
    if _readable(units):
        if bool(inside.all()):
            return draft
        outside = units[draft.valid & ~inside]
        if len(outside):
            raise ValueError(f"proposed id {int(outside[0])}; ids are 0 … {vocab - 1}")
    return replace(draft, units=units.clamp(0, vocab - 1), valid=draft.valid & inside)


def _readable(values: Tensor) -> bool:
    """True if the host can read the values without a sync."""
    return values.device.type == "cpu"
