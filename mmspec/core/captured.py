"""A captured round: one function over fixed buffers, traced once, compiled, and on CUDA replayed as one graph.

The draft comes from outside, since drafters may work on the host; verify, warp, accept, append and commit are inside.
The round is that of the eager loop (`mmspec.core.round`), with the same parts in the same order. Draws by position are
made before the round by the call's own source, so that they are the eager loop's numbers to the bit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.capabilities import CapturedPass
from mmspec.core.compiling import Compiled
from mmspec.core.live import Live
from mmspec.core.noise import Round
from mmspec.core.report import tallied
from mmspec.core.round import DrawnSource, decided
from mmspec.core.rules.rule import Rule
from mmspec.core.state import State
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Scores, Step
from mmspec.core.warp import Warp


@dataclass(frozen=True)
class Plan:
    """The static shape of a round.

    Attributes:
        rows: Rows of the batch.
        nodes: Nodes of every pass, root and padding included.
        deepest: Depth of the deepest node that a draft may have.
        index: The tree of every draft; None: each round brings its own.
        vocab: Number of unit ids.
        warp: Turns scores into distributions; all its processors are element-wise.
        rule: Decides which nodes are accepted.
    """

    rows: int
    nodes: int
    deepest: int
    index: TreeIndex | None
    vocab: int
    warp: Warp
    rule: Rule


class CapturedRound:
    """The buffers of a plan, and its compiled round.

    Args:
        plan: The static shape.
        target: The target's pass.
        columns: Columns of the history, the scratch column included.
        like: A call whose numbers the buffers are made for.
    """

    def __init__(self, plan: Plan, target: CapturedPass, columns: int, like: State) -> None:
        self.plan, self.target = plan, target
        device, rows = like.emitted.device, plan.rows
        with torch.inference_mode(False):
            self.live = _buffers(like, columns)
            self.units = torch.zeros(rows, plan.nodes - 1, dtype=like.root.dtype, device=device)
            self.valid = torch.zeros(rows, plan.nodes - 1, dtype=torch.bool, device=device)
            self.parent = torch.full((rows, plan.nodes), -1, device=device)
            positions = plan.deepest + 1 if plan.warp.sample else 0
            self.numbers = torch.ones(rows, positions, plan.vocab, device=device)
        self._run: Compiled[tuple[Step, Tensor, Tensor]]
        self._sampled = plan.warp.sample

    def warm(self) -> None:
        """Compile the round, again if the target's pass has changed."""
        self._run = Compiled(self._round, self.live.emitted.device)
        with self._no_effect(), torch.inference_mode(False), torch.no_grad(), self.target.ready():
            self._run.warm()

    def idle(self) -> Scores:
        """Run a round that changes nothing."""
        with self._no_effect():
            return self.run()[0].scores

    @contextmanager
    def _no_effect(self) -> Iterator[None]:
        """A block in which all rows are done, and every node repeats the root."""
        done = self.live.done.clone()
        self.live.done.fill_(True)
        self.units[:] = self.live.root[:, None]
        self.parent[:, 1:] = 0
        try:
            yield
        finally:
            self.live.done.copy_(done)

    def load(self, state: State) -> None:
        """Take over a call: its numbers are copied into the buffers, which it goes on with."""
        live = self.live
        known = state.prompt_length + max(state.host_emitted)
        live.history[:, :known].copy_(state.history[:, :known])
        now = state.live
        pairs = [(live.emitted, now.emitted), (live.root, now.root), (live.done, now.done), (live.pads, now.pads)]
        for mine, its in [*pairs, (live.nonfinite, now.nonfinite), (live.ends, now.ends)]:
            mine.copy_(its)
        for number, value in ((live.prompt_length, state.prompt_length), (live.limit, state.limit)):
            assert isinstance(number, Tensor)
            number.fill_(value)
        self.target.load(state.cache)
        state.history, state.pads, state.ends = live.history, live.pads, live.ends
        state.take(live)

    def fits(self, draft: Draft) -> bool:
        """Whether a draft (not rooted) has the plan's tree, or a part of it that comes first."""
        index = self.plan.index
        return index is None or _opens(index, draft.index)

    def __call__(self, state: State, draft: Draft) -> Step:
        """One round of the call that was loaded last, with its counts; `draft` is not rooted and fits."""
        self.place(state, draft)
        step, drafted, accepted = self.run()
        state.report.sizes[self.plan.nodes] += 1
        if draft.units.shape[1]:
            state.report.add(drafted.clone(), accepted.clone())  # the next round overwrites them
        return step

    def place(self, state: State, draft: Draft) -> None:
        """Write a draft and the round's numbers into the buffers; behind the draft, padding."""
        drafted = draft.units.shape[1]
        self.units[:, :drafted].copy_(draft.units)
        self.units[:, drafted:] = state.root[:, None]
        valid = draft.valid if draft.distribution is None else draft.valid & draft.distribution.finite()
        self.valid[:, :drafted].copy_(valid)
        self.valid[:, drafted:] = False
        if self.plan.index is None:
            index = draft.index.padded(self.plan.nodes)
            near = index.depth <= self.plan.deepest  # a drafter goes no deeper, unless it is wrong
            self.parent.copy_(torch.where(near, index.parent, 0))
            self.valid &= near[:, 1:]
        if self._sampled:
            noise = state.source.by_position(state.emitted, state.round().host_emitted, self.plan.deepest)
            self.numbers.copy_(noise.exponential(self.plan.vocab))

    def run(self) -> tuple[Step, Tensor, Tensor]:
        """The round of what the buffers hold, and its tallies as `mmspec.core.report.tallied` counts."""
        with torch.inference_mode(False), torch.no_grad(), self.target.ready():
            return self._run()

    def _round(self) -> tuple[Step, Tensor, Tensor]:
        """The traced function. It reads and writes the buffers."""
        plan, live = self.plan, self.live
        index = plan.index if plan.index is not None else TreeIndex.dynamic(self.parent, plan.deepest)
        if plan.nodes == 1:
            draft = Draft(live.root[:, None], index, torch.ones_like(live.done[:, None]))
        else:
            draft = Draft(self.units, index, self.valid).rooted(live.root, live.room)
        output = self.target.verify(draft)
        scores = plan.warp.elementwise(output, draft, live.history, live.emitted)
        active = ~live.done
        after, step = decided(live, draft, scores, plan.rule, Round(DrawnSource(self.numbers), live.emitted, ()))
        drafted, accepted = tallied(draft.valid, step.verdict.length.minimum(step.count), active)
        self.target.commit(step.verdict.path, step.count)
        live.emitted.copy_(after.emitted)
        live.root.copy_(after.root)
        live.done.copy_(after.done)
        live.nonfinite.copy_(after.nonfinite)
        return step, drafted, accepted


def _buffers(state: State, columns: int) -> Live:
    """Rows like those of a call, with buffers of their own and `columns` columns of history."""
    live = state.live
    return Live(
        live.history.new_zeros(len(live.history), columns, *live.history.shape[2:]),
        live.emitted.clone(),
        live.root.clone(),
        live.done.clone(),
        live.nonfinite.clone(),
        live.pads.clone(),
        torch.zeros((), dtype=torch.int64, device=live.emitted.device),
        torch.zeros((), dtype=torch.int64, device=live.emitted.device),
        live.ends.clone(),
        live.context,
    )


def _opens(whole: TreeIndex, part: TreeIndex) -> bool:
    """Whether the nodes of `part` are the first ones of `whole`."""
    if part.nodes == 1:
        return True
    return part.listed is not None and whole.listed is not None and whole.listed[: part.nodes] == part.listed
