"""A draft model that continues hypotheses: the worker behind an executor.

Its cache holds known units only. What it was fed in the last request stays in the cache's scratch until the next one
shows which of these units came true; they are then committed, and everything else that is known and was never fed opens
the next pass. So no message has to arrive: a request that was lost is made up for by the next.
A request of `n` units costs `n` passes. The first feeds all that is known or pending, and says how likely each outcome
of the pending draft is; every other pass feeds one unit of each branch, which are the leaves of a tree.
A model that was trained to fill in masks (PARD, arXiv 2504.18583) drafts several units a pass, which is the speculative
streaming of Mirror-SD (2510.13161): every branch ends with masks, and all of its units are read at once. A request then
costs one pass, or two where the draft model itself has to say what the outcomes are.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.capabilities import LengthAware
from mmspec.core.distributions import Distribution, take_nodes
from mmspec.core.drafters.shapes.siblings import race
from mmspec.core.history_processors import Prefix
from mmspec.core.protocols import Target
from mmspec.core.types import Draft
from mmspec_zoo.overlap.ahead import Ahead, Request
from mmspec_zoo.overlap.outcomes import Outcomes, Ranked


@dataclass(frozen=True)
class Beginning:
    """The beginning of a call's draft model."""

    inputs: Any  # the target's prompt, as `start` takes it
    limit: int  # new units wanted per row
    width: int  # most nodes of a pass
    most: int  # most known units that one pass catches up with; behind more, passes are added
    rows: int  # rows of the batch
    device: torch.device  # where the units are
    mask: int | None = None  # the unit in whose places the draft model was trained to fill in others; None: it was not


class Continuation:
    """One call's draft model, which offers `grow`; making it prefills the prompt."""

    def __init__(self, model: Target, how: Beginning) -> None:
        self.model, self.most, self.mask = model, how.most, how.mask
        self.cache = model.start(how.inputs, how.limit, how.width).cache
        self.seen = torch.zeros(how.rows, dtype=torch.int64, device=how.device)  # emitted units in the cache
        self._fed: Draft | None = None  # what is in the scratch, rooted at the first emitted unit that the cache lacks

    def run(self, request: Request) -> Ahead:
        """Answer a request. Requests come in the order in which they were made, none of them twice out of turn."""
        if isinstance(self.model, LengthAware):
            self.model.synced(self.cache, request.host_emitted)
        self._commit_what_came_true(request)
        lag = self._caught_up(request)
        pending = torch.where(request.done, 0, request.pending)
        base = self._known(request, lag + pending)
        drafted = self._stepwise if self.mask is None else self._at_once
        return self._answer(request, *drafted(request, base, lag, pending))

    def _stepwise(self, request: Request, base: Draft, lag: Tensor, pending: Tensor) -> tuple[Outcomes, Tensor]:
        """The outcomes, and `request.count` units of each, `[batch, branch, count]`: one of every branch a pass."""
        outcomes = Outcomes.chosen(self._ranked(request, base, lag, pending), request.branches, request.fan)
        fed, above, drawn = base, lag[:, None] + outcomes.accepted, [outcomes.unit]
        leaf = torch.arange(outcomes.unit.shape[1], device=lag.device)
        for step in range(1, request.count):
            first = fed.nodes
            fed = _with_leaves(fed, drawn[-1], above, outcomes.valid)
            scored = self._scores(request, fed, first)
            drawn.append(race(request.frontier(scored, outcomes.accepted + step)).argmax(-1))
            above = (first + leaf).expand_as(above)
        return outcomes, torch.stack(drawn, 2)

    def _at_once(self, request: Request, base: Draft, lag: Tensor, pending: Tensor) -> tuple[Outcomes, Tensor]:
        """As `_stepwise`, with all units of all branches in one pass."""
        ranked, scored = request.ranked, 0
        if ranked is None and request.branches == 1:  # no other outcome has to be known first
            end, place = (lag + pending)[:, None], pending[:, None]
            valid = torch.ones_like(place, dtype=torch.bool)
            units = self._filled(request, base, scored, end, place=place, valid=valid, count=request.count)
            return Outcomes(place, units[..., 0], valid), units
        if ranked is None:
            ranked, scored = self._ranked(request, base, lag, pending), base.nodes
        outcomes = Outcomes.chosen(ranked, request.branches, request.fan)
        units, place, valid = outcomes.unit, outcomes.accepted, outcomes.valid
        if request.count == 1:
            return outcomes, units[..., None]
        leaf = base.nodes + torch.arange(units.shape[1], device=lag.device).expand_as(units)
        fed = _with_leaves(base, units, lag[:, None] + place, valid)
        behind = self._filled(request, fed, scored, leaf, place=place + 1, valid=valid, count=request.count - 1)
        return outcomes, torch.cat([units[..., None], behind], 2)

    def _filled(
        self, request: Request, fed: Draft, scored: int, above: Tensor, *, place: Tensor, valid: Tensor, count: int
    ) -> Tensor:
        """`count` units behind the nodes `above [batch, branch]` of `fed`, in one pass over its nodes from `scored` on:
        read at these nodes and at masks behind them; `place` and `valid`, of the same shape, are the position of the
        first unit and whether there is such a branch. Units are `[batch, branch, count]`.
        """
        assert self.mask is not None
        branches, first = above.shape[1], fed.nodes
        masks = first + torch.arange(branches * (count - 1), device=above.device).expand(len(above), -1)
        nodes = torch.cat([above, masks], 1)  # every step's nodes of all branches, then the next step's
        if count > 1:
            unit = torch.full_like(masks, self.mask)
            fed = _with_leaves(fed, unit, nodes[:, :-branches], valid.repeat(1, count - 1))
        step = torch.arange(count, device=above.device).repeat_interleave(branches)
        found = self._scores(request, fed, scored).take(nodes - scored)
        units = race(request.frontier(found, place.repeat(1, count) + step)).argmax(-1)
        return units.unflatten(1, (count, branches)).transpose(1, 2)

    def _ranked(self, request: Request, base: Draft, lag: Tensor, pending: Tensor) -> Ranked:
        """The outcomes at the root and each node of the pending draft: a pass over all that is known or pending."""
        scored = self._scores(request, base, 0)
        if request.ranked is not None:
            return request.ranked
        node = torch.arange(int(pending.max()) + 1, device=lag.device)
        places = (lag[:, None] + node).clamp(max=base.nodes - 1)
        return request.ranks(scored.take(places), take_nodes(base.units, places[:, 1:]))

    def _answer(self, request: Request, outcomes: Outcomes, units: Tensor) -> Ahead:
        total = int(outcomes.accepted.max()) + request.count
        slot, accepted = torch.arange(total, device=units.device), outcomes.accepted[..., None]
        place = request.prompt_length + request.emitted[:, None] + slot
        pending = take_nodes(request.units, place.clamp(max=request.units.shape[1] - 1))[:, None]
        behind = units.gather(2, (slot - accepted).clamp(0, request.count - 1))
        wanted = outcomes.valid & ~request.done[:, None]
        length = torch.where(wanted, outcomes.accepted + request.count, 0)
        return Ahead(request.emitted, torch.where(slot < accepted, pending, behind), length)

    def _scores(self, request: Request, draft: Draft, first: int) -> Distribution:
        """One pass over the nodes of a rooted draft from `first` on: distributions over all units, also if greedy."""
        self._fed = draft
        output = self.model.verify(self.cache, draft, first)
        known = [request.prompt_length + seen + 1 for seen in self.seen.tolist()]
        prefix = Prefix(request.units, known, self.seen + 1)
        return request.scoring(output, draft, prefix, slice(first, None)).distribution

    def _known(self, request: Request, behind: Tensor) -> Draft:
        """The first unit that the cache lacks, and `behind [batch]` known or pending ones after it: a rooted chain."""
        slot = torch.arange(int(behind.max()) + 1, device=behind.device)
        place = request.prompt_length + self.seen[:, None] + slot
        units = take_nodes(request.units, place.clamp(max=request.units.shape[1] - 1))
        return Draft.chain(units[:, 1:]).rooted(units[:, 0], behind)

    def _caught_up(self, request: Request) -> Tensor:
        """Feed known units until few enough are left for one pass: how many the cache still lacks before the root."""
        lag = self._lag(request)
        while int(lag.max()) >= self.most:
            chain = self._known(request, lag.clamp(max=self.most - 1))
            self.model.verify(self.cache, chain, 0)
            self._commit(torch.arange(1, chain.nodes, device=lag.device).expand(len(lag), -1), lag.clamp(max=self.most))
            lag = self._lag(request)
        return lag

    def _commit_what_came_true(self, request: Request) -> None:
        if self._fed is None:
            return
        fed, depth = self._fed, self._fed.index.depth
        place = request.prompt_length + self.seen[:, None] + depth
        now = take_nodes(request.units, place.clamp(max=request.units.shape[1] - 1))
        same = fed.valid & (fed.units == now) & (depth < self._lag(request)[:, None])
        reached = ~(fed.index.ancestor & ~same[:, None]).any(-1)  # one node at most of any depth
        node = torch.arange(fed.nodes, device=depth.device).expand_as(reached)
        path = torch.full_like(node[:, :1], -1).repeat(1, fed.nodes + 1)
        path.scatter_(1, torch.where(reached, depth, fed.nodes), node)
        self._commit(path[:, 1:-1], reached.sum(1))

    def _commit(self, path: Tensor, count: Tensor) -> None:
        self.model.commit(self.cache, path, count)
        self.seen, self._fed = self.seen + count, None

    def _lag(self, request: Request) -> Tensor:
        """Emitted units before the root that the cache lacks: `[batch]`; 0 in rows that want nothing."""
        return torch.where(request.done, 0, request.emitted - 1 - self.seen)


def _with_leaves(draft: Draft, units: Tensor, above: Tensor, valid: Tensor) -> Draft:
    """A rooted draft with more nodes: their units, parents, and whether there are such, all `[batch, m]`."""
    drafted = torch.cat([draft.drafted, units], 1)
    kept = torch.cat([draft.valid[:, 1:], valid], 1)
    one_by_one = draft.nodes - 1 + torch.arange(units.shape[1], device=above.device)
    if draft.index.is_chain and bool((above == one_by_one).all()):
        longer = Draft.chain(drafted, valid=kept)
    else:
        parents = torch.cat([draft.index.parent[:, 1:].expand(len(units), -1), above], 1) - 1
        longer = Draft.tree(drafted, parents, valid=kept)
    return longer.rooted(draft.units[:, 0], torch.full_like(above[:, 0], longer.index.nodes))
