"""Drafting ahead of a round that is not settled: the request, its answer, and what of the answer still holds.

Under `match` a drafter that shares the target's noise guesses the target's own units, so that the best hypothesis about
an unsettled round is that its whole draft is accepted and that the drafter's next unit is the one more. The drafter
goes on from there, and from other outcomes of the round if the request asks for more branches: some units of the draft
are accepted, then one comes that the drafter thought less likely (`mmspec_zoo.overlap.outcomes` chooses which). After
the round, a branch holds for a row if it agrees with every unit that the row has got since.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.distributions import Distribution, take_nodes
from mmspec.core.drafters.shapes import Frontier
from mmspec.core.drafters.shapes.siblings import likeliest
from mmspec.core.noise import DraftNoise
from mmspec.core.round import DrawnNoise
from mmspec.core.state import State
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec_zoo.overlap.outcomes import Fan, Ranked

SPREAD = 0.75  # temperature of the estimate that a race's second is the target's first, as in the tree `rerank`


@dataclass(frozen=True)
class Request:
    """Draft `count` units behind the known units and a pending draft. A copy: the call may go on meanwhile."""

    units: Tensor  # `[batch, column]`: the prompt, the emitted units, the pending draft, and room for `count` units
    prompt_length: int  # length of the prompt in `units`, padding included
    emitted: Tensor  # `[batch]` int64: units emitted; with the row, the tag of the answer
    pending: Tensor  # `[batch]` int64: units of the pending draft
    done: Tensor  # `[batch]` bool: rows that want nothing
    host_emitted: list[int]  # `emitted`, on the host
    count: int  # units wanted in every branch
    branches: int  # outcomes of the round to go on from; the first is that all is accepted
    fan: Fan  # which the others are
    # The target's noise of the positions behind `emitted`: `[batch, widest pending + count]`; of a greedy call, none
    noise: DrawnNoise
    warp: Warp  # turns the draft model's output into distributions
    ranked: Ranked | None = None  # what may come at each node of the pending draft; None: the draft model says it

    @property
    def scoring(self) -> Warp:
        """The warp, with distributions over all units also if greedy."""
        return replace(self.warp, sample=True)

    def frontier(self, distribution: Distribution, position: Tensor) -> Frontier:
        """Nodes that draw the units of these positions, counted from the root's: `[batch | 1, node]`."""
        none = torch.zeros(1, 1, device=position.device)
        return Frontier(distribution, self.noise.at(position), none, not self.warp.sample, False)

    def ranks(self, distribution: Distribution, drafted: Tensor) -> Ranked:
        """The outcomes at each node of the pending draft, the root and `drafted [batch, node - 1]`."""
        node = torch.arange(drafted.shape[1] + 1, device=drafted.device)
        children = 1 if self.branches == 1 else self.branches + 1  # one of them may be drafted
        units, score = likeliest(self.frontier(distribution, node[None]), children, SPREAD)
        return Ranked(units, score, drafted, torch.where(self.done, 0, self.pending))

    @classmethod
    def of(
        cls, state: State, draft: Draft, count: int, noise: DraftNoise, *, vocab: int, branches: int, fan: Fan
    ) -> "Request":
        """A call's request in a round whose draft, a chain that is not rooted, is about to be verified."""
        widest, pending = draft.units.shape[1], draft.valid.sum(1)
        longest = state.prompt_length + max(state.host.emitted)
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
            emitted=state.emitted.clone(),  # captured rounds write it in place
            pending=pending,
            done=state.done.clone(),
            host_emitted=list(state.host.emitted),
            count=count,
            branches=branches,
            fan=fan,
            noise=DrawnNoise(numbers),
            warp=state.warp,
        )


@dataclass(frozen=True)
class Ahead:
    """The answer: the units that a row will have got if one of the hypotheses holds."""

    emitted: Tensor  # `[batch]` int64: the tag, `Request.emitted`.
    units: Tensor  # `[batch, branch, n]`: what is accepted of the pending draft, then what was drafted behind it
    length: Tensor  # `[batch, branch]` int64: how many of them there are; 0: no such branch

    def kept(self, state: State, k: int) -> Draft:
        """The part that continues the known units, at most `k`: a chain, not rooted; invalid in rows that missed."""
        widest = self.units.shape[2]
        slot, since = torch.arange(widest, device=self.units.device), (state.emitted - self.emitted)[:, None]
        place = state.prompt_length + self.emitted[:, None] + slot
        known = take_nodes(state.history, place.clamp(max=state.history.shape[1] - 1))
        agrees = ((known[:, None] == self.units) | (slot >= since[..., None])).all(2)  # [batch, branch]
        left = torch.where(agrees, self.length - since, 0).max(1)
        branch = take_nodes(self.units, left.indices[:, None])[:, 0]
        order = slot[: min(k, widest)]
        units = take_nodes(branch, (since + order).clamp(max=widest - 1))
        return Draft.chain(units, valid=order < left.values[:, None])
