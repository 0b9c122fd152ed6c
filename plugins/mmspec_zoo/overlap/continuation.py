"""A draft model that continues hypotheses: the worker behind an executor.

Its cache holds known units only. What it was fed in the last request stays in the cache's scratch until the next one
shows which of these units came true; they are then committed, and everything else that is known and was never fed opens
the next pass. So no message has to arrive: a request that was lost is made up for by the next.
A request of `n` units costs `n` passes. The first feeds all that is known or pending, and says how likely each outcome
of the pending draft is; every other pass feeds one unit of each branch, which are the leaves of a tree.
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
from mmspec_zoo.overlap.outcomes import Outcomes


@dataclass(frozen=True)
class Beginning:
    """The beginning of a call's draft model."""

    inputs: Any  # the target's prompt, as `start` takes it
    limit: int  # new units wanted per row
    width: int  # most nodes of a pass
    most: int  # most known units that one pass catches up with; behind more, passes are added
    rows: int  # rows of the batch
    device: torch.device  # where the units are


class Continuation:
    """One call's draft model, which offers `grow`; making it prefills the prompt."""

    def __init__(self, model: Target, how: Beginning) -> None:
        self.model, self.most = model, how.most
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
        outcomes = self._outcomes(request, base, lag, pending)
        return self._answer(request, outcomes, self._grown(request, base, lag, outcomes))

    def _outcomes(self, request: Request, base: Draft, lag: Tensor, pending: Tensor) -> Outcomes:
        """The first pass: from what to go on."""
        first, node = int(lag.min()), torch.arange(int(pending.max()) + 1, device=lag.device)
        places = lag[:, None] + node  # the root, and the pending draft
        scored = self._scores(request, base, first).take((places - first).clamp(max=base.nodes - first - 1))
        drafted = take_nodes(base.units, places[:, 1:].clamp(max=base.nodes - 1))
        ranked = request.ranks(scored, drafted) if request.ranked is None else request.ranked
        return Outcomes.chosen(ranked, request.branches, request.fan)

    def _grown(self, request: Request, base: Draft, lag: Tensor, outcomes: Outcomes) -> Tensor:
        """All other passes: `request.count` units of every branch, `[batch, branch, count]`."""
        fed, above, drawn = base, lag[:, None] + outcomes.accepted, [outcomes.unit]
        leaf = torch.arange(outcomes.unit.shape[1], device=lag.device)
        for step in range(1, request.count):
            first = fed.nodes
            fed = _with_leaves(fed, drawn[-1], above, outcomes.valid)
            scored = self._scores(request, fed, first)
            drawn.append(race(request.frontier(scored, outcomes.accepted + step)).argmax(-1))
            above = (first + leaf).expand_as(above)
        return torch.stack(drawn, 2)

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
    if draft.index.is_chain and units.shape[1] == 1 and bool((above == draft.nodes - 1).all()):
        longer = Draft.chain(drafted, valid=kept)
    else:
        parents = torch.cat([draft.index.parent[:, 1:].expand(len(units), -1), above], 1) - 1
        longer = Draft.tree(drafted, parents, valid=kept)
    return longer.rooted(draft.units[:, 0], torch.full_like(above[:, 0], longer.index.nodes))
