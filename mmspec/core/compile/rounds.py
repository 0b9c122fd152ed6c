"""A captured round: functions over fixed buffers, compiled by torch or as they are, on CUDA replayed as one graph.

Together they are the round of the eager loop (`mmspec.core.round.play_round`). The draft comes from outside, since
drafters may work on the host, or from a drafter that works on tensors alone. Draws by position are the eager loop's
numbers to the bit: its kernels make them, before what is compiled, or the call's own source does before the round.
Fresh draws, which all rules but the invariant ones use, are functions of the call's key and the committed units.
"""

from collections.abc import Callable, Hashable, Iterator, MutableMapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from types import CodeType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from tqdm import tqdm

from mmspec.core.compile.launch import OneLaunch, compiled, copied
from mmspec.core.compile.proposal import Family, Proposal, family_of, takes
from mmspec.core.compile.protocols import Capturable, InsideDrafts
from mmspec.core.forced import with_forced
from mmspec.core.noise import Counting, Round, Source, Unread
from mmspec.core.philox import PhiloxSource
from mmspec.core.report import tallied
from mmspec.core.round import DrawnDraftNoise, DrawnSource, settled
from mmspec.core.rules.rule import Rule, draws_by_position
from mmspec.core.state import State
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Scores, Step, TargetOutput
from mmspec.core.warp import Warp
from mmspec.registry.printable import first_line
from mmspec.registry.switches import strict
from mmspec.registry.warn import warn

READ_AT_ONCE = ("cpu",)
"""Kinds of devices whose numbers the host reads without a wait: there nothing is gained by reading them late."""


def read_at_once(device: torch.device) -> bool:
    """True if the host reads a device's numbers without a wait."""
    return device.type in READ_AT_ONCE


Keyed = Literal["all", "fresh", "none"]
Passes = MutableMapping[Hashable, CodeType]
"""The codes of passes that were compiled for a model, by `Plan.shape`."""


@dataclass(frozen=True)
class Plan:
    """The static shape of a round."""

    rows: int  # rows of the batch
    nodes: int  # nodes of every pass, root and padding included
    deepest: int  # depth of the deepest node that a draft may have
    index: TreeIndex | None  # the tree of every draft; None: each round brings its own
    vocab: int  # number of unit ids
    warp: Warp  # turns scores into distributions; all its processors are element-wise
    rule: Rule  # decides which nodes are accepted
    family: Family | None = None  # what drafted units were drawn from; None: from no distribution, or nobody reads it
    compiled: bool = True  # whether torch compiles the round; if not, it is recorded as it is
    frozen: bool = False  # whether the weights are baked in (`mmspec.core.frozen`)
    keyed: Keyed = "none"  # which numbers are functions of the call's key, which the round then has
    lone: bool = False  # whether a round without a draft has one node
    call: Hashable = ()  # what two calls must share beside all this, such as the size of their caches
    drafts: InsideDrafts | None = None  # makes the round's draft inside of it; None: the draft comes from outside

    def proposal(self, device: torch.device) -> Proposal | None:
        """New buffers for what drafted units were drawn from."""
        sizes = self.rows, self.nodes - 1, self.vocab
        return None if self.family is None else Proposal(self.family, *sizes, device)

    @property
    def key(self) -> Hashable:
        """A key that the plans of two calls must share for one round to serve both, beside the warp and the drafts."""
        return self.shape, type(self.rule), self.family, self.lone, self.keyed

    @property
    def shape(self) -> Hashable:
        """A key that the plans of two calls must share for one pass to serve both."""
        return self.buffers, self.deepest, None if self.index is None else self.index.listed

    @property
    def buffers(self) -> tuple[str, *tuple[Hashable, ...]]:
        """A key that the plans of two calls must share for the same buffers to serve both."""
        return "compiled" if self.compiled else "recorded", self.call, self.rows, self.nodes

    def holds(self, index: TreeIndex) -> bool:
        """True if a draft's tree is the plan's, or a part of it that comes first."""
        if self.index is None or index.nodes == 1:
            return True
        whole, part = self.index.listed, index.listed
        return whole is not None and part is not None and whole[: len(part)] == part


class Parts(NamedTuple):
    """The functions of which a round consists.

    They are compiled one by one: the pass takes the longest by far, and is the same for every rule, every draft and
    every law of sampling. Only the rounds of a small model, whose weights are baked in, are compiled whole: calling
    three functions would be a tenth of their time.
    """

    draft: Callable[[], Draft]
    forward: Callable[[Draft], TargetOutput]
    settle: Callable[[Draft, TargetOutput], Step]


class Buffers:
    """Rows and cache of calls of one shape, at fixed addresses, and the captured rounds over them.

    They serve one call at a time, which may go from one round to another without a copy. `columns` are those of the
    history.
    """

    @torch.inference_mode(False)
    def __init__(self, target: Capturable, state: State, plan: Plan, columns: int) -> None:
        self.cache = target.held(state.cache, plan.nodes)
        if not plan.compiled:
            self.cache.fall_back()  # from what only a compiler can make fast
        now = state.live
        number = now.emitted.new_zeros(())
        own: dict[str, Any] = {name: value.clone() for name, value in vars(now).items() if isinstance(value, Tensor)}
        own["history"] = now.history.new_zeros(len(now.history), columns, *now.history.shape[2:])
        self.live = replace(now, **own | {"prompt_length": number, "limit": number.clone()})
        self.key = number.new_zeros(state.rows, 2)  # of the call's fresh numbers
        self.rounds: dict[Hashable, CapturedRound] = {}  # the latest one last

    def load(self, state: State) -> None:
        """Take over a call: its numbers are copied into the buffers, which it goes on with."""
        if state.live is self.live:
            return
        known = state.prompt_length + max(state.host.emitted)
        now = replace(state.live, prompt_length=state.prompt_length, limit=state.reach)
        for name, mine in vars(self.live).items():
            if name == "history":
                mine[:, :known] = now.history[:, :known]
            elif isinstance(mine, Tensor):
                mine[...] = vars(now)[name]
        if isinstance(state.source, Counting):
            self.key.copy_(state.source.fresh_key)
        state.cache, state.live = self.cache.load(state.cache), self.live


class CapturedRound:
    """The captured round of a plan over buffers."""

    @torch.inference_mode(False)
    def __init__(self, plan: Plan, target: Capturable, held: Buffers, passes: Passes) -> None:
        self.plan, self.target, self.passes = plan, target, passes
        self._held, self.cache, self.live, self.key = held, held.cache, held.live, held.key
        device, rows = self.live.emitted.device, plan.rows
        self.units = torch.zeros(rows, plan.nodes - 1, dtype=self.live.root.dtype, device=device)
        self.valid = torch.zeros(rows, plan.nodes - 1, dtype=torch.bool, device=device)
        self.parent = torch.full((rows, plan.nodes), -1, device=device)
        positions = plan.deepest + 1 if plan.warp.sample and draws_by_position(plan.rule) else 0
        self.numbers = torch.ones(rows, positions, plan.vocab, device=device)
        fresh = None if plan.keyed == "none" else self.key
        self.source: Source = DrawnSource(self.numbers if draws_by_position(plan.rule) else None, fresh)
        if plan.keyed == "all" and not plan.compiled:  # with the kernels that draw in the eager loop
            self.source = PhiloxSource(self.key, ahead=False)
        self.proposal = plan.proposal(device)
        # What the host reads of a round: for every row `emitted`, `done`, `nonfinite`; then the round's tallies.
        self.counts = torch.zeros(3 * rows + plan.nodes, dtype=torch.int64, device=device)
        self._parts = Parts(self._draft, self._pass, self._settle)
        self._run: OneLaunch[Step]

    @cached_property
    def lone(self) -> "CapturedRound | None":
        """The round of the root alone over the same rows and the same cache; None if it cannot be compiled."""
        root = TreeIndex.static([-1], self.live.emitted.device)
        plan = replace(self.plan, nodes=1, deepest=0, index=root, family=None, lone=False)
        try:
            lone = CapturedRound(plan, self.target, self._held, self.passes)
            lone.warm()
        except Exception as error:
            if strict():
                raise
            warn(f"compiled rounds without a draft have as many nodes as the others: {first_line(error)}")
            return None
        return lone

    def warm(self) -> None:
        """Compile the round, again if the target's pass has changed."""
        plan, before = self.plan, None
        whole = self._round
        if plan.compiled:
            before = self._draw_by_key if plan.keyed == "all" else None
            if plan.frozen:
                whole = compiled(self._round, frozen=True)
            else:
                code = self.passes.setdefault(plan.shape, copied(self._pass))
                self._parts = Parts(compiled(self._draft), compiled(self._pass, code=code), compiled(self._settle))
        device, frozen = self.live.emitted.device, plan.compiled and plan.frozen
        self._run = OneLaunch(whole, device, watched=not plan.compiled, frozen=frozen, before=before)
        bar = tqdm(total=1, desc=f"compiling {plan.nodes} nodes", leave=False, disable=not plan.compiled or None)
        with bar, self._no_effect(), self._ready():
            self._run.warm()
            bar.update()

    def idle(self) -> Scores:
        """Run a round that changes nothing."""
        with self._no_effect():
            return self.run().scores

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

    def fits(self, draft: Draft) -> bool:
        """True if a draft (not rooted) has the plan's tree, or a part of it that comes first, and its family."""
        plan = self.plan
        if plan.drafts is not None:  # it makes its own
            return False
        if not draft.units.shape[1]:
            return True
        return plan.holds(draft.index) and takes(plan.family, family_of(draft, plan.rule, plan.warp.sample))

    def __call__(self, state: State, draft: Draft) -> None:
        """Play a round of the call that has the buffers; `draft` is not rooted and fits."""
        lone = self.lone if self.plan.lone and not draft.units.shape[1] else None
        if lone is not None:
            return lone(state, draft)
        self.place(state, draft)
        step = self._play(state)
        if draft.score is not None:  # a round reads none; its drafter may
            score = pad(draft.score, (0, self.plan.nodes - 1 - draft.units.shape[1]))
            state.step = replace(step, draft=replace(step.draft, score=score))
        state.report.sizes[self.plan.nodes] += 1

    def needs_no_counts(self, state: State) -> bool:
        """True if the numbers of a call's next round can be drawn before the host knows how far its rows are."""
        return not self.numbers.numel() or self.plan.keyed == "all" or isinstance(state.source, Unread)

    def launch(self, state: State, unread: int) -> None:
        """Play a round of the call that has the buffers, its draft included, after `unread` ones that were not read."""
        self._draw(state, self.plan.deepest, unread)
        self._play(state)

    def _draw(self, state: State, deepest: int, unread: int = 0) -> None:
        """Draw the round's numbers by position, for nodes as deep as that, unless it draws them itself."""
        if self.plan.keyed == "all" or not self.numbers.numel():
            return
        if isinstance(state.source, Unread) and not read_at_once(state.emitted.device):
            noise = state.source.by_tensors(state.emitted, deepest, unread * (deepest + 1))
        else:
            noise = state.source.by_position(state.emitted, state.round().host_emitted, deepest)
        self.numbers[:, : deepest + 1].copy_(noise.exponential(self.plan.vocab))

    def _draw_by_key(self) -> None:
        if self.numbers.numel():
            noise = PhiloxSource(self.key).by_tensors(self.live.emitted, self.plan.deepest)
            self.numbers.copy_(noise.exponential(self.plan.vocab))

    def _play(self, state: State) -> Step:
        state.step = step = self.run()
        state.counted = self.counts
        state.report.add_bias(step.draft, step.verdict, step.count)
        return step

    def place(self, state: State, draft: Draft) -> None:
        """Write a draft and the round's numbers into the buffers; behind the draft, padding."""
        drafted = draft.units.shape[1]
        self.units[:, :drafted].copy_(draft.units)
        self.units[:, drafted:] = state.root[:, None]
        self.valid[:, drafted:] = False
        valid = draft.valid
        if self.proposal is not None:
            self.proposal.place(draft.distribution)
        elif draft.distribution is not None:
            valid = valid & draft.distribution.finite()
        self.valid[:, :drafted].copy_(valid)
        if self.plan.index is None:
            index = draft.index.padded(self.plan.nodes)
            near = index.depth <= self.plan.deepest  # a drafter goes no deeper, unless it is wrong
            self.parent.copy_(torch.where(near, index.parent, 0))
            self.valid &= near[:, 1:]
        self._draw(state, min(draft.index.deepest, self.plan.deepest))

    def run(self) -> Step:
        """The round of what the buffers hold."""
        if self._run.recorded:
            return self._run()
        with self._ready():
            return self._run()

    @contextmanager
    def _ready(self) -> Iterator[None]:
        drafts = nullcontext() if self.plan.drafts is None else self.plan.drafts.ready()
        with torch.inference_mode(False), torch.no_grad(), self.target.ready(self.cache, self.plan.nodes), drafts:
            yield

    def _round(self) -> Step:
        """The function that is recorded. It reads and writes the buffers."""
        draft = self._parts.draft()
        return self._parts.settle(draft, self._parts.forward(draft))

    def _pass(self, draft: Draft) -> TargetOutput:
        return self.target.forward(self.cache, draft)

    def _settle(self, draft: Draft, output: TargetOutput) -> Step:
        plan, live, active = self.plan, self.live, ~self.live.done
        judged: Any = {"warp": plan.warp, "rule": plan.rule, "round": Round(self.source, live.emitted, ())}
        after, step = settled(self.target, self.cache, live, draft, output, **judged)
        drafted, accepted = tallied(draft.valid, step.verdict.length.minimum(step.count), active)
        live.emitted.copy_(after.emitted)
        live.root.copy_(after.root)
        live.done.copy_(after.done)
        live.nonfinite.copy_(after.nonfinite)
        counts = after.emitted, after.done.long(), after.nonfinite, drafted[None], accepted
        self.counts.copy_(torch.cat(counts))
        if plan.drafts is not None:
            plan.drafts.observe(live, step)
        return step

    def _draft(self) -> Draft:
        """The rooted draft."""
        plan, live = self.plan, self.live
        if plan.nodes == 1:
            assert plan.index is not None
            return Draft(live.root[:, None].clone(), plan.index, torch.ones_like(live.done[:, None]))
        if plan.drafts is None:
            index = plan.index if plan.index is not None else TreeIndex.dynamic(self.parent, plan.deepest)
            drawn = None if self.proposal is None else self.proposal.distribution(self.units)
            return Draft(self.units, index, self.valid, drawn).rooted(live.root, live.room)
        noise = plan.rule.draft_noise(Round(self.source, live.emitted, ()))
        if noise.shared and isinstance(self.source, DrawnSource):
            noise = DrawnDraftNoise(noise.round, True)
        draft = with_forced(plan.drafts.propose(live, noise), plan.warp, live, 0)
        units, drawn = draft.units, draft.distribution
        missing = plan.nodes - 1 - units.shape[1]
        known = draft.valid & (units >= 0) & (units < plan.vocab)
        if drawn is not None and missing:  # padding is never valid, so that any distribution does
            drawn = drawn.take(torch.arange(plan.nodes - 1, device=units.device).clamp(max=units.shape[1] - 1)[None])
        units = torch.cat([torch.where(known, units, 0), live.root[:, None].expand(-1, missing)], 1)
        index = plan.index if plan.index is not None else draft.index.padded(plan.nodes)
        return Draft(units, index, pad(known, (0, missing), value=False), drawn).rooted(live.root, live.room)
