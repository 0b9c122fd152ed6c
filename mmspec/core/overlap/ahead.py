"""Drafting ahead of a round that is not settled: the request, its answer, and what of the answer still holds.

Under `match` a drafter that shares the target's noise guesses the target's own units, so that the best hypothesis about
an unsettled round is that its whole draft is accepted and that the drafter's next unit is the one more. The drafter
goes on from there. After the round, the answer holds for a row if it agrees with every unit that the row has got since.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.history_processors import Prefix
from mmspec.core.noise import DraftNoise
from mmspec.core.round import DrawnNoise
from mmspec.core.state import State
from mmspec.core.types import Draft
from mmspec.core.warp import Warp


@dataclass(frozen=True)
class Request:
    """Draft `count` units behind the known units and a pending draft. A copy: the call may go on meanwhile.

    Attributes:
        units: `[batch, column]`: the prompt, the emitted units, the pending draft, and room for `count` units.
        prompt_length: Length of the prompt in `units`, padding included.
        emitted: `[batch]` int64: units emitted; with the row, the tag of the answer.
        pending: `[batch]` int64: units of the pending draft.
        done: `[batch]` bool: rows that want nothing.
        host_emitted: `emitted`, on the host.
        ends: `prompt_length + emitted + pending`, on the host.
        count: Units wanted.
        noise: The target's noise of the positions behind `emitted`: `[batch, widest pending + count]`;
            of a greedy call, none.
        warp: Turns the draft model's output into distributions.
    """

    units: Tensor
    prompt_length: int
    emitted: Tensor
    pending: Tensor
    done: Tensor
    host_emitted: list[int]
    ends: list[int]
    count: int
    noise: DrawnNoise
    warp: Warp

    @classmethod
    def of(cls, state: State, draft: Draft, count: int, noise: DraftNoise, vocab: int) -> "Request":
        """What a call asks in a round whose draft, a chain that is not rooted, is about to be verified."""
        widest, pending = draft.units.shape[1], draft.valid.sum(1)
        longest = state.prompt_length + max(state.host_emitted)
        units = torch.nn.functional.pad(state.history[:, :longest], (0, widest + count))
        slot = torch.arange(widest, device=units.device)
        units.scatter_(1, state.known[:, None] + slot, draft.units)
        positions = widest + count
        # A greedy call must not touch the noise: stock decoding would leave its generator where it was.
        greedy = torch.empty(state.rows, positions, 0, device=units.device)
        numbers = noise.chain(1, positions).exponential(vocab) if state.warp.sample else greedy
        return cls(
            units=units,
            prompt_length=state.prompt_length,
            emitted=state.emitted,
            pending=pending,
            done=state.done,
            host_emitted=list(state.host_emitted),
            ends=(state.known + pending).tolist(),
            count=count,
            noise=DrawnNoise(numbers),
            warp=state.warp,
        )

    def prefix(self, drawn: int) -> Prefix:
        """The known units of the hypothesis after `drawn` units of the answer."""
        return Prefix(self.units, [end + drawn for end in self.ends], self.emitted + self.pending + drawn)


@dataclass(frozen=True)
class Ahead:
    """The answer: the units that a row will have got if the hypothesis holds.

    Attributes:
        emitted: `[batch]` int64: the tag, `Request.emitted`.
        units: `[batch, n]`: the pending draft, then what was drafted behind it.
        length: `[batch]` int64: how many of them there are.
    """

    emitted: Tensor
    units: Tensor
    length: Tensor

    def kept(self, state: State, k: int) -> Draft:
        """What of it continues the known units, at most `k` units: a chain, not rooted; invalid in rows that missed."""
        widest = self.units.shape[1]
        slot, since = torch.arange(widest, device=self.units.device), state.emitted - self.emitted
        place = state.prompt_length + self.emitted[:, None] + slot
        known = take_nodes(state.history, place.clamp(max=state.history.shape[1] - 1))
        agrees = ((known == self.units) | (slot >= since[:, None])).all(1)
        index = since[:, None] + slot[: min(k, widest)]
        valid = agrees[:, None] & (index < self.length[:, None])
        return Draft.chain(take_nodes(self.units, index.clamp(max=widest - 1)), valid=valid)
