"""Units that are known in advance, in drafts: a chain has them in their places, whatever its drafter proposed.

Nothing else can be accepted there. A unit that was put into a chain is a point mass. An empty chain, or the padding of
a chain of point masses, is filled with the known units that follow, so that these cost no pass.
"""

from dataclasses import replace

import torch
from torch import Tensor

from mmspec.core.distributions import Distribution, Mixed, PointMass
from mmspec.core.state import State
from mmspec.core.types import Draft


def with_forced(draft: Draft, state: State, budget: int) -> Draft:
    """A draft, not rooted, with the call's forced units (`Warp.forced`); unchanged where there are none, or a tree."""
    if state.warp.forced is None or not draft.index.is_chain:
        return draft
    draft = _longer(draft, state, min(budget, state.budget.width - 1))
    only = _known(state, draft.units.shape[1])
    units = torch.where(only < 0, draft.units, only)
    return replace(draft, units=units, distribution=_points(draft.distribution, only >= 0, units))


def _longer(draft: Draft, state: State, nodes: int) -> Draft:
    """The chain with the forced units that follow it without a gap: in its own padding, or `nodes` if it is empty."""
    missing = 0 if draft.units.shape[1] else nodes
    if draft.distribution is not None or draft.score is not None or (draft.units.shape[1] == 0 and nodes <= 0):
        return draft
    given = torch.nn.functional.pad(draft.valid, (0, missing))
    units = torch.cat([draft.units, state.root[:, None].expand(-1, missing)], 1)
    return Draft.chain(units, valid=(given | (_known(state, units.shape[1]) >= 0)).cumprod(1).bool())


def _known(state: State, nodes: int) -> Tensor:
    """The forced units of the next `nodes` places, `[batch, node]`; -1: free."""
    return state.warp.forced_at(state.emitted[:, None] + torch.arange(nodes, device=state.emitted.device))


def _points(drawn: Distribution | None, here: Tensor, units: Tensor) -> Distribution | None:
    """The distribution of a chain whose units `here [batch, node]` were replaced."""
    if drawn is None or isinstance(drawn, PointMass):
        return drawn if drawn is None else PointMass(units)
    inner, random = (drawn.distribution, drawn.random) if isinstance(drawn, Mixed) else (drawn, torch.ones_like(here))
    return Mixed(inner, random & ~here, units)
