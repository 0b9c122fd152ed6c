"""A captured round: one function over fixed buffers, traced once, compiled, and on CUDA replayed as one graph.

The draft comes from outside, since drafters may work on the host; verify, warp, accept, append and commit are inside.
The round is that of the eager loop (`mmspec.core.round`), with the same parts in the same order. Draws by position are
made before the round by the call's own source, so that they are the eager loop's numbers to the bit. Fresh draws, which
all rules but the invariant ones use, are computed inside from the call's key and the number of committed units.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad
from tqdm import tqdm

from mmspec.core.capturable import CapturedPass
from mmspec.core.compiling import Compiled
from mmspec.core.live import Live
from mmspec.core.noise import Counting, Round, Unread
from mmspec.core.plan import Plan
from mmspec.core.proposal import family_of, takes
from mmspec.core.report import tallied
from mmspec.core.round import DrawnSource, decided
from mmspec.core.rules.rule import draws_by_position
from mmspec.core.state import State
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Scores, Step
from mmspec.registry.printable import first_line
from mmspec.registry.switches import strict
from mmspec.registry.warn import warn


class CapturedRound:
    """The buffers of a plan, and its compiled round.

    Args:
        plan: The static shape.
        target: The target's pass.
        live: Buffers for the rows of a call.
    """

    def __init__(self, plan: Plan, target: CapturedPass, live: Live) -> None:
        self.plan, self.target, self.live = plan, target, live
        device, rows = live.emitted.device, plan.rows
        with torch.inference_mode(False):
            self.units = torch.zeros(rows, plan.nodes - 1, dtype=live.root.dtype, device=device)
            self.valid = torch.zeros(rows, plan.nodes - 1, dtype=torch.bool, device=device)
            self.parent = torch.full((rows, plan.nodes), -1, device=device)
            positions = plan.deepest + 1 if plan.warp.sample else 0
            if draws_by_position(plan.rule):
                self.source = DrawnSource(torch.ones(rows, positions, plan.vocab, device=device), None)
            else:
                self.source = DrawnSource(None, torch.zeros(rows, 2, dtype=torch.int64, device=device))
            self.proposal = plan.buffers(device)
        self._run: Compiled[tuple[Step, Tensor, Tensor]]

    @cached_property
    def lone(self) -> "CapturedRound | None":
        """The round of the root alone over the same rows and the same cache; None if it cannot be compiled."""
        device = self.live.emitted.device
        try:
            lone = CapturedRound(self.plan.without_draft(device), self.target.lone(), self.live)
            if self.source.key is not None:
                lone.source = self.source
            lone.warm()
        except Exception as error:
            if strict():
                raise
            warn(f"compiled rounds without a draft have as many nodes as the others: {first_line(error)}")
            return None
        return lone

    def warm(self) -> None:
        """Compile the round, again if the target's pass has changed."""
        self._run = Compiled(self._round, self.live.emitted.device, self.plan.frozen)
        bar = tqdm(total=1, desc=f"compiling rounds of {self.plan.nodes} nodes", leave=False, disable=None)
        with bar, self._no_effect(), torch.inference_mode(False), torch.no_grad(), self.target.ready():
            self._run.warm()
            bar.update()

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
        for number, value in ((live.prompt_length, state.prompt_length), (live.limit, state.reach)):
            assert isinstance(number, Tensor)
            number.fill_(value)
        if self.source.key is not None:
            assert isinstance(state.source, Counting)
            self.source.key.copy_(state.source.fresh_key)
        self.target.load(state.cache)
        state.live = live

    def fits(self, draft: Draft) -> bool:
        """Whether a draft (not rooted) has the plan's tree, or a part of it that comes first, and its family."""
        plan = self.plan
        if not draft.units.shape[1]:
            return True
        return self.holds(draft.index) and takes(plan.family, family_of(draft, plan.rule, plan.warp.sample))

    def holds(self, index: TreeIndex) -> bool:
        """Whether a draft's tree is the plan's, or a part of it that comes first."""
        return self.plan.index is None or _opens(self.plan.index, index)

    def __call__(self, state: State, draft: Draft) -> Step:
        """One round of the call that was loaded last, with its counts; `draft` is not rooted and fits."""
        lone = self.lone if self.plan.lone and not draft.units.shape[1] else None
        if lone is not None:
            return lone(state, draft)
        self.place(state, draft)
        step, drafted, accepted = self.run()
        state.report.sizes[self.plan.nodes] += 1
        if draft.units.shape[1]:
            state.report.add(drafted.clone(), accepted.clone())  # the next round overwrites them
        state.report.add_bias(step.draft, step.verdict, step.count)
        return step

    def launch(self, state: State) -> None:
        """One round of the call that was loaded last, its draft included; the host waits for nothing."""
        if self.source.numbers is not None and self.plan.warp.sample:
            assert isinstance(state.source, Unread)
            noise = state.source.by_tensors(state.emitted, self.plan.deepest)
            self.source.numbers.copy_(noise.exponential(self.plan.vocab))
        step, drafted, accepted = self.run()
        if self.plan.nodes > 1:
            state.report.add(drafted.clone(), accepted.clone())
        state.report.add_bias(step.draft, step.verdict, step.count)
        state.step = step

    def place(self, state: State, draft: Draft) -> None:
        """Write a draft and the round's numbers into the buffers; behind the draft, padding."""
        drafted = draft.units.shape[1]
        self.units[:, :drafted].copy_(draft.units)
        self.units[:, drafted:] = state.root[:, None]
        valid = draft.valid
        if self.proposal is not None:
            self.proposal.place(draft.distribution)
        elif draft.distribution is not None:
            valid = valid & draft.distribution.finite()
        self.valid[:, :drafted].copy_(valid)
        self.valid[:, drafted:] = False
        if self.plan.index is None:
            index = draft.index.padded(self.plan.nodes)
            near = index.depth <= self.plan.deepest  # a drafter goes no deeper, unless it is wrong
            self.parent.copy_(torch.where(near, index.parent, 0))
            self.valid &= near[:, 1:]
        if self.source.numbers is not None and self.plan.warp.sample:
            noise = state.source.by_position(state.emitted, state.round().host_emitted, self.plan.deepest)
            self.source.numbers.copy_(noise.exponential(self.plan.vocab))

    def run(self) -> tuple[Step, Tensor, Tensor]:
        """The round of what the buffers hold, and its tallies as `mmspec.core.report.tallied` counts."""
        with torch.inference_mode(False), torch.no_grad(), self.target.ready():
            return self._run()

    def _round(self) -> tuple[Step, Tensor, Tensor]:
        """The traced function. It reads and writes the buffers."""
        plan, live = self.plan, self.live
        index = plan.index if plan.index is not None else TreeIndex.dynamic(self.parent, plan.deepest)
        if plan.nodes == 1:
            draft = Draft(live.root[:, None].clone(), index, torch.ones_like(live.done[:, None]))
        else:
            drawn = None if self.proposal is None else self.proposal.distribution(self.units)
            units, valid = self._proposed()
            draft = Draft(units, index, valid, drawn).rooted(live.root, live.room)
        output = self.target.verify(draft)
        scores = plan.warp.elementwise(output, draft, live.history, live.emitted)
        active = ~live.done
        after, step = decided(live, draft, scores, plan.rule, Round(self.source, live.emitted, ()))
        drafted, accepted = tallied(draft.valid, step.verdict.length.minimum(step.count), active)
        self.target.commit(step.verdict.path, step.count)
        live.emitted.copy_(after.emitted)
        live.root.copy_(after.root)
        live.done.copy_(after.done)
        live.nonfinite.copy_(after.nonfinite)
        if plan.drafts is not None:
            plan.drafts.observe(live, step)
        return step, drafted, accepted

    def _proposed(self) -> tuple[Tensor, Tensor]:
        """The drafted units, and which of them are proposed: `[batch, node - 1]` each."""
        plan, live = self.plan, self.live
        if plan.drafts is None:
            return self.units, self.valid
        units, valid = plan.drafts.propose(live)
        missing = plan.nodes - 1 - units.shape[1]
        padding = live.root[:, None].expand(-1, missing)
        known = valid & (units >= 0) & (units < plan.vocab)
        return torch.cat([torch.where(known, units, 0), padding], 1), pad(known, (0, missing), value=False)


@torch.inference_mode(False)
def buffers(state: State, columns: int) -> Live:
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
