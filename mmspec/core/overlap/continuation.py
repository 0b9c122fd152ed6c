"""A draft model that continues hypotheses: the worker behind an executor.

Its cache holds known units only. What it was fed in the last request stays in the cache's scratch until the next one
shows which of these units came true; they are then committed, and everything else that is known and was never fed opens
the next chain. So no message has to arrive: a request that was lost is made up for by the next.
A request of `n` units costs `n` passes, the first of which feeds all that is known or pending.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.capabilities import LengthAware
from mmspec.core.distributions import take_nodes
from mmspec.core.overlap.ahead import Ahead, Request
from mmspec.core.protocols import Target
from mmspec.core.types import Draft, TargetOutput


@dataclass(frozen=True)
class Beginning:
    """How a call's draft model begins.

    Attributes:
        inputs: The target's prompt, as `start` takes it.
        limit: New units wanted per row.
        width: Most nodes of a pass.
        most: Most known units that one pass catches up with; behind more, passes are added.
        rows: Rows of the batch.
        device: Where the units are.
    """

    inputs: Any
    limit: int
    width: int
    most: int
    rows: int
    device: torch.device


class Continuation:
    """One call's draft model.

    Args:
        model: Any target that offers `grow`.
        cache: Its cache, after the prefill.
        most: Most known units that one pass catches up with; behind more, passes are added.
        rows: Rows of the batch.
        device: Where the units are.
    """

    def __init__(self, model: Target, cache: Any, most: int, rows: int, device: torch.device) -> None:
        self.model, self.cache, self.most = model, cache, most
        self.seen = torch.zeros(rows, dtype=torch.int64, device=device)  # emitted units in the cache
        self._fed: tuple[Tensor, Tensor] | None = None  # units [batch, node] in the scratch, and how many [batch]

    @classmethod
    def begun(cls, model: Target, how: Beginning) -> "Continuation":
        """Prefill the prompt."""
        started = model.start(how.inputs, how.limit, how.width)
        return cls(model, started.cache, how.most, how.rows, how.device)

    def run(self, request: Request) -> Ahead:
        """Answer a request. Requests come in the order in which they were made, none of them twice out of turn."""
        if isinstance(self.model, LengthAware):
            self.model.synced(self.cache, request.host_emitted)
        self._commit_what_came_true(request)
        lag = self._lag(request)
        while int(lag.max()) >= self.most:
            self._feed(request, torch.full_like(lag, self.most).minimum(lag + 1), 0)
            self._commit(self.most, lag.clamp(max=self.most))
            lag = self._lag(request)
        length = lag + 1 + torch.where(request.done, 0, request.pending)
        shortest = int(length.min())
        end = torch.where(request.done, request.prompt_length + self.seen + 1, self._end(request))
        for drawn in range(request.count):
            first = 0 if drawn == 0 else shortest + drawn - 1
            output = self._feed(request, length + drawn, first).take((length + drawn - 1 - first)[:, None])
            root = take_nodes(request.units, (end + drawn - 1)[:, None])[:, 0]
            scores = request.warp(output, Draft.alone(root), request.prefix(drawn))
            noise = request.noise.at((request.pending + drawn)[:, None])
            unit = scores.distribution.units(scores.distribution.draw(noise))
            request.units.scatter_(1, (end + drawn)[:, None], unit)
        return self._answer(request)

    def _answer(self, request: Request) -> Ahead:
        total = int(request.pending.max()) + request.count
        slot = torch.arange(total, device=self.seen.device)
        place = request.prompt_length + request.emitted[:, None] + slot
        units = take_nodes(request.units, place.clamp(max=request.units.shape[1] - 1))
        length = torch.where(request.done, 0, request.pending + request.count)
        return Ahead(request.emitted, units, length)

    def _feed(self, request: Request, length: Tensor, first: int) -> TargetOutput:
        """One pass over the first `length [batch]` units that the cache lacks; output from node `first` on."""
        slot = torch.arange(int(length.max()), device=length.device)
        place = request.prompt_length + self.seen[:, None] + slot
        units = take_nodes(request.units, place.clamp(max=request.units.shape[1] - 1))
        self._fed = units, length
        return self.model.verify(self.cache, Draft.chain(units[:, 1:]).rooted(units[:, 0], length - 1), first)

    def _commit_what_came_true(self, request: Request) -> None:
        if self._fed is None:
            return
        units, length = self._fed
        slot = torch.arange(units.shape[1], device=units.device)
        place = request.prompt_length + self.seen[:, None] + slot
        now = take_nodes(request.units, place.clamp(max=request.units.shape[1] - 1))
        same = (units == now) & (slot < length[:, None]) & (slot < self._lag(request)[:, None])
        self._commit(units.shape[1], same.cumprod(1).sum(1))

    def _commit(self, nodes: int, count: Tensor) -> None:
        path = torch.arange(1, nodes, device=count.device).expand(len(count), -1)
        self.model.commit(self.cache, path, count)
        self.seen, self._fed = self.seen + count, None

    def _lag(self, request: Request) -> Tensor:
        """Emitted units before the root that the cache lacks: `[batch]`; 0 in rows that want nothing."""
        return torch.where(request.done, 0, request.emitted - 1 - self.seen)

    @staticmethod
    def _end(request: Request) -> Tensor:
        return request.prompt_length + request.emitted + request.pending
