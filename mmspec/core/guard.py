"""What keeps a drafter's or a policy's faults away from a call: the round runs without a draft, and a warning says why.

A fault is anything that their code raises, and a draft that is not as `Draft` says. Shapes and types are looked at
everywhere; ids and parents where reading the device is free (on the CPU), and elsewhere nodes that are wrong are
refused on the device. A call that has no memory left, and `MMSPEC_STRICT`, raise.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, Mixed, PointMass
from mmspec.core.memory import out_of_memory
from mmspec.core.state import State
from mmspec.core.types import Draft
from mmspec.registry.switches import strict
from mmspec.registry.warn import warn


@contextmanager
def spared(state: State, who: str, learns: bool = False, refuses: bool = False) -> Iterator[None]:
    """A block of a drafter's or a policy's own code: what it raises is counted, and said once a call.

    What it draws from torch's generator does not count for the call's noise: a draft must never change the output.

    Args:
        state: The call.
        who: Whose code it is.
        learns: It is told here what later drafts rest on: after a fault there are no more of them in this call.
        refuses: A `ValueError` is no fault here: it says, in the drafter's words, why this call is none for it.

    Raises:
        MemoryError: There is none left; likewise `torch.OutOfMemoryError`.
    """
    try:
        with state.source.sheltered():
            yield
    except Exception as error:
        if refuses and isinstance(error, ValueError):
            state.source.finish(0)  # a refused call draws nothing
            raise
        if strict() or out_of_memory(error):
            raise
        if not state.report.faults:
            rest = "the rest of this call runs" if learns else "such rounds run"
            warn(f"{who} failed ({type(error).__name__}: {error}); {rest} without a draft")
        state.report.faults += 1
        state.drafting = state.drafting and not learns


def attempted(make: Callable[[], Draft], state: State, who: str, vocab: int | None) -> Draft | None:
    """The sound draft that `make` returns; None, and a fault of `who`, where it does not.

    Args:
        make: Proposes, or trims.
        state: The call.
        who: Whose code it is.
        vocab: Number of unit ids of a discrete target.
    """
    with spared(state, who):
        return sound(make(), state, vocab)
    return None


def sound(draft: Any, state: State, vocab: int | None) -> Draft:
    """A draft that can be verified: what was proposed, with no id outside the vocabulary and no parent that is none.

    Args:
        draft: What a drafter or a policy returned, not rooted yet.
        state: The call.
        vocab: Number of unit ids of a discrete target.

    Raises:
        TypeError: It is no draft.
        ValueError: It is not as `Draft` says, has more nodes than the cache was made for, or (where looking is free)
            ids or parents that do not exist.
    """
    wrong = misshapen(draft, state.root) or _misfit(draft, vocab)
    if wrong:
        raise (ValueError if isinstance(draft, Draft) else TypeError)(wrong)
    nodes = draft.units.shape[1]
    if nodes >= state.width:
        raise ValueError(f"{nodes} nodes were drafted, and width() had said {state.width - 1} at most")
    if not nodes:
        return draft
    draft = draft if draft.index.is_chain else _with_parents(draft)
    return draft if vocab is None else _in_vocabulary(draft, vocab)


def misshapen(draft: Any, root: Tensor) -> str:
    """What about a draft's shapes and types is not as `Draft` says; empty where nothing is.

    Args:
        draft: What was proposed, not rooted yet.
        root: `[batch, *unit]`.
    """
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
    for name in ("valid", "score"):
        value = getattr(draft, name)
        if value is not None and tuple(value.shape) != (rows, nodes):
            return f"{name} has the shape {list(value.shape)} where there are {rows} rows of {nodes} nodes"
    if draft.valid.dtype != torch.bool:
        return f"valid is {draft.valid.dtype}, not bool"
    distribution = draft.distribution.distribution if isinstance(draft.distribution, Mixed) else draft.distribution
    if isinstance(draft.distribution, Mixed) and tuple(draft.distribution.random.shape) != (rows, nodes):
        shape = list(draft.distribution.random.shape)
        return f"the distribution is mixed for {shape} where there are {rows} rows of {nodes} nodes"
    if isinstance(distribution, Categorical) and tuple(distribution.probs.shape[:2]) != (rows, nodes):
        return f"the distribution is {list(distribution.probs.shape[:2])} where there are {rows} rows of {nodes} nodes"
    return ""


def _misfit(draft: Draft, vocab: int | None) -> str:
    """Why a draft's distribution is none of the target's units; empty where it is."""
    distribution = draft.distribution.distribution if isinstance(draft.distribution, Mixed) else draft.distribution
    if distribution is None or isinstance(distribution, PointMass):
        return ""
    if isinstance(distribution, Categorical) != (vocab is not None):
        return f"a draft's distribution is a {type(distribution).__name__}, and the target's units are of another kind"
    if isinstance(distribution, Categorical) and distribution.size != vocab:
        return f"the distribution is over {distribution.size} unit ids, and the target has {vocab}"
    if isinstance(distribution, Categorical) and distribution.ids is not None and _readable(distribution.ids):
        strange = distribution.ids[(distribution.ids < 0) | (distribution.ids >= distribution.size)]
        return (
            f"the distribution has the id {int(strange[0])}; ids are 0 … {distribution.size - 1}"
            if len(strange)
            else ""
        )
    return ""


def _with_parents(draft: Draft) -> Draft:
    """A tree without nodes that stand before their parent, have none, or lie deeper than the tree says."""
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
    """A draft whose nodes all have an id of the vocabulary; those that had none are refused."""
    units = draft.units
    inside = (units >= 0) & (units < vocab)
    if _readable(units):
        if bool(inside.all()):
            return draft
        strange = units[draft.valid & ~inside]
        if len(strange):
            raise ValueError(f"proposed id {int(strange[0])}; ids are 0 … {vocab - 1}")
    return replace(draft, units=units.clamp(0, vocab - 1), valid=draft.valid & inside)


def _readable(values: Tensor) -> bool:
    """Whether a look at the data costs no sync."""
    return values.device.type == "cpu"
