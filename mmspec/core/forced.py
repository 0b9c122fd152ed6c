"""Units that are known in advance, in drafts: a chain has them in their places, whatever its drafter proposed.

Nothing else can be accepted there. A unit that was put into a chain is a point mass. An empty chain, or the padding of
a chain of point masses, is filled with the known units that follow, so that these cost no pass.
"""

from dataclasses import replace

import torch
from torch import Tensor

from mmspec.core.distributions import Distribution, Mixed, PointMass
from mmspec.core.live import Live
from mmspec.core.types import Draft
from mmspec.core.warp import Warp


def with_forced(draft: Draft, warp: Warp, live: Live, nodes: int) -> Draft:
    """A draft, not rooted, with the call's forced units (`Warp.forced`); unchanged where there are none, or a tree.

    In the place of an empty draft, a chain has at most `nodes` units.
    """
    if warp.forced is None or not draft.index.is_chain:
        return draft
    position = live.emitted[:, None] + torch.arange(draft.units.shape[1] or nodes, device=live.emitted.device)
    only = warp.forced_at(position)
    draft = _longer(draft, live.root, only)
    only = only[:, : draft.units.shape[1]]  # an empty chain with scores stays empty
    units = torch.where(only < 0, draft.units, only)
    return replace(draft, units=units, distribution=_points(draft.distribution, only >= 0, units))


def _longer(draft: Draft, root: Tensor, only: Tensor) -> Draft:
    """The chain with the forced units that follow it without a gap: in its own padding, or all places if it is empty.

    Of the places, `only [batch, node]` are the forced units, -1 where they are free.
    """
    missing = only.shape[1] - draft.units.shape[1]
    if draft.distribution is not None or draft.score is not None or not only.shape[1]:
        return draft
    given = torch.nn.functional.pad(draft.valid, (0, missing))
    units = torch.cat([draft.units, root[:, None].expand(-1, missing)], 1)
    return Draft.chain(units, valid=(given | (only >= 0)).cumprod(1).bool())


def _points(drawn: Distribution | None, here: Tensor, units: Tensor) -> Distribution | None:
    """The distribution of a chain whose units `here [batch, node]` were replaced."""
    if drawn is None or isinstance(drawn, PointMass):
        return drawn if drawn is None else PointMass(units)
    inner, random = (drawn.distribution, drawn.random) if isinstance(drawn, Mixed) else (drawn, torch.ones_like(here))
    return Mixed(inner, random & ~here, units)
