"""Captured rounds of a decoder, and the player of a call that has them.

What cannot be captured is decoded by the eager loop, with one warning that says why.

A round that drafts by itself is one launch from draft to commit. Most are read one round late, so that the device has
the next round before anybody asks what the last one gave. The host copies a round's counts without a wait, launches the
next round, and reads the copy after that. Rows that ended meanwhile do nothing in the round that is too many. Who
streams units, or stops rows on the host, needs the counts of a round before the next.
"""

from collections.abc import Hashable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from mmspec.core.capabilities import OneShape, RunsModel, WithinPasses
from mmspec.core.compile.check import checked_round
from mmspec.core.compile.pool import Pool, pool_of
from mmspec.core.compile.proposal import family_of
from mmspec.core.compile.protocols import Capturable, DraftsInside
from mmspec.core.compile.rounds import Buffers, CapturedRound, Plan, read_at_once
from mmspec.core.live import bucket
from mmspec.core.noise import Counting, Source
from mmspec.core.out_of_memory import out_of_memory
from mmspec.core.philox import PhiloxSource
from mmspec.core.policies import Fixed, Policy
from mmspec.core.processors import drafts_forbidden_by, is_elementwise
from mmspec.core.protocols import Drafter, Target
from mmspec.core.round import Eager
from mmspec.core.rules.rule import Rule, draws_by_position
from mmspec.core.state import State
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.registry.printable import first_line
from mmspec.registry.suggest import unknown
from mmspec.registry.switches import strict
from mmspec.registry.warn import warn

Compile = Literal["auto"] | bool | None
"""Ways to capture rounds. None: on CUDA recorded as they are, each as one graph, where possible; elsewhere not at all.
True: compiled by torch, and on CUDA recorded, where possible. `auto`: where that is faster. False: not at all."""

Way = Literal["compiled", "recorded"]

RECORDING = ("cuda",)
"""Kinds of devices that record graphs."""


def checked_compile(compile: Any) -> Compile:
    """The argument, if it means something."""
    if compile is None or isinstance(compile, bool):
        return compile
    if compile != "auto":
        raise ValueError(unknown("compile", compile, ("auto",)) + ", True, False and None")
    return "auto"


class Captures:
    """The captured rounds of a decoder.

    `one_shape` says whether all rounds of a call must have the same number of nodes. If not, rounds without a draft
    have one node where width costs time, which is on a CPU; only in float32 does the output not depend on it.
    """

    def __init__(self, target: Target, drafter: Drafter, rule: Rule, compile: Compile, *, one_shape: bool) -> None:
        self.target, self.drafter, self.rule, self.compile = target, drafter, rule, compile
        self.windows = "window" in drafter.offers
        self.lone = bool(compile) and not one_shape and _exact_on_cpu(target)
        self.refused = False  # whether a round could not be captured, so that none is tried again
        self.inside = drafter if isinstance(drafter, DraftsInside) else None  # what drafts inside of rounds
        self._own_trees = False  # whether drafts have had different trees

    @cached_property
    def pool(self) -> Pool:
        """The captured rounds; made when the first round is, so that other models carry none."""
        return pool_of(self.target, self.rule)

    @property
    def way(self) -> Way | None:
        """The way in which rounds are to be captured, with the model where it is now; None: not at all."""
        if self.compile:
            return "compiled"
        if self.compile is None and _recordable(self.target) and not isinstance(self.drafter, WithinPasses):
            return "recorded"
        return None

    def free_recorded(self) -> None:
        """Free the memory of rounds that were recorded; compiled ones are kept, because compiling takes long."""
        if "pool" in vars(self):  # wherever the model is now
            self.pool.clear("recorded")

    def round_for(self, state: State, draft: Draft, way: Way, before: CapturedRound | None) -> CapturedRound | None:
        """A captured round that takes a draft (not rooted), after the one `before`; None if there can be none."""
        self._own_trees = self._own_trees or (before is not None and not before.plan.holds(draft.index))
        index = draft.index.padded(state.budget.width)
        family = family_of(draft, self.rule, state.warp.sample, self.windows)
        shared = None if self._own_trees or index.listed is None else index
        lone = self.lone and state.budget.width > 1
        return self._take_over(state, self._plan(state, way, shared, family=family, lone=lone))

    def drafting_round(self, state: State, policy: Policy, way: Way) -> CapturedRound | None:
        """The captured round that makes the next drafts, too; None: they come from outside, as they do where the
        policy's budget may change.
        """
        drafter = self.inside
        if drafter is None or type(policy) is not Fixed or not state.budget.drafting:
            return None
        if read_at_once(state.emitted.device) and not drafter.everywhere:
            return None
        refused = self.refusal(state.warp, state.source) or drafts_forbidden_by(state.warp.processors)
        if refused or not drafter.fits_inside(state):
            return None
        k = min(policy.k, state.budget.k)
        if k < 1 <= state.budget.k:
            return None  # no drafts are wanted
        inside, tree = drafter.inside(k, state), None
        if inside.parents is not None:
            tree = TreeIndex.static((-1, *(parent + 1 for parent in inside.parents)), state.emitted.device)
            tree = tree.padded(state.budget.width)
        return self._take_over(state, self._plan(state, way, tree, drafts=inside), (type(drafter), inside.key, k))

    def _plan(self, state: State, way: Way, index: TreeIndex | None, **more: Any) -> Plan:
        nodes, k = state.budget.width, state.budget.k
        deepest = min(nodes - 1, max(k, 1)) if index is None else index.deepest
        ahead = read_at_once(state.emitted.device) or not isinstance(state.source, PhiloxSource)
        keyed = "none" if not isinstance(state.source, Counting) else "fresh" if ahead else "all"
        more |= {"keyed": keyed, "compiled": way == "compiled"}
        return Plan(state.rows, nodes, deepest, index, self.target.vocab or 0, state.warp, self.rule, **more)

    def _take_over(self, state: State, plan: Plan, drafter: Hashable = None) -> CapturedRound | None:
        """A captured round with the call loaded; None, with a warning, if there can be none.

        `drafter` tells one drafter inside of rounds from another.
        """
        before = state.cache, replace(state.live, prompt_length=state.prompt_length, limit=state.reach)
        why, captured = self.refusal(state.warp, state.source), None
        if why:
            warn(f"this call is not captured, and runs eagerly: {why}")
        else:
            try:
                captured = self._lent(state, plan, drafter)
            except Exception as error:
                if strict():
                    raise
                self._give_up(error, inside=plan.drafts is not None)
            if captured is None:
                state.cache, state.live = before
        state.report.compiled = captured is not None and plan.compiled
        state.report.recorded = captured is not None and not plan.compiled
        return captured

    def _give_up(self, error: Exception, inside: bool) -> None:
        """Capture no more rounds, or none that draft by themselves if `inside`."""
        if out_of_memory(error):
            self.pool.clear()
        if inside:
            self.inside = None
            warn(f"drafts are made outside of captured rounds: {first_line(error)}")
        else:
            self.refused = True
            warn(f"rounds are not captured, and run eagerly: {first_line(error)}")

    def refusal(self, warp: Warp, source: Source | None) -> str:
        """A sentence on why a call, unlike others, cannot be captured; "" if it can. No source: the decoder's kind."""
        reading = [type(p).__name__ for p in warp.processors if not is_elementwise(p)]
        if reading:
            return f"{', '.join(reading)} read the history on the host"
        if source is not None and not draws_by_position(self.rule) and not isinstance(source, Counting):
            return f"{type(source).__name__} has no fresh numbers that are functions of tensors alone"
        if isinstance(self.drafter, WithinPasses):
            return f"{type(self.drafter).__name__} {self.drafter.within} in the middle of the target's pass"
        return ""

    def _lent(self, state: State, plan: Plan, drafter: Hashable) -> CapturedRound | None:
        """A captured round for this call alone; None if the eager loop is faster and that matters."""
        if not isinstance(self.target, Capturable) or self.target.vocab is None:
            raise ValueError(f"the pass of {type(self.target).__name__} cannot be captured")
        models = [self.target.model] if isinstance(self.target, RunsModel) else []
        if plan.drafts is not None:
            models += plan.drafts.modules
        self.pool.renew(models)
        columns = bucket(state.prompt_length + state.limit + 1)
        call = type(self.target), self.target.capture_key(state.cache), columns, len(state.live.ends), state.context
        plan = replace(plan, call=call, frozen=self.pool.frozen and plan.compiled)
        target, passes = copy(self.target), self.pool.passes  # the target as it is now
        key, only_if_faster = (plan.buffers[0], plan.key, state.warp.key, drafter), self.compile == "auto"
        return self.pool.lend(
            plan.buffers,
            key,
            state,
            make=lambda: Buffers(target, state, plan, columns),
            capture=lambda held: checked_round(target, held, state, plan, passes, only_if_faster),
        )


class Captured:
    """Plays the rounds of one call as captured ones; from one that cannot be captured on, the eager player does."""

    def __init__(self, captures: Captures, eager: Eager, way: Way) -> None:
        self.captures, self.eager, self.way = captures, eager, way
        self.round: CapturedRound | None = None  # the last one, which has the call in its buffers
        self._played = False

    def play(self, state: State, proposed: Draft | None) -> int:
        """Play a round of a draft that is not rooted, but for its host sync: the depth of the draft.

        A draft that does not fit the last round, as its tree is another one, changes the round.
        """
        draft = Draft.empty(state.root) if proposed is None else proposed
        if self.round is None or not self.round.fits(draft):
            self.round = self.captures.round_for(state, draft, self.way, self.round)
        if self.round is None:
            if self._played:
                state.report.width = None  # captured and eager rounds in one call: no plain decoding has these
            state.player = self.eager
            return self.eager.play(state, proposed)
        self._played = True
        with state.report.phase("verify"):
            self.round(state, draft)
        with state.report.phase("rest"):
            assert state.step is not None
            self.eager.proposer.observe(state, state.step)
        return draft.index.deepest

    def own_rounds(self, state: State, policy: Policy, watched: bool) -> Iterator[State]:
        """Play rounds that draft by themselves to the end, or to the next pause: the state of every round. There are
        none where drafts come from outside; and no more once somebody who watches forbids drafts.

        Such a round borrows the drafter's memory. Under `watched`, the counts of every round are read before the next
        one. If not, and if no number that is drawn depends on them, the state has the counts of the round before.
        """
        drafting = self.captures.drafting_round(state, policy, self.way)
        if drafting is None:
            return
        self.round, self._played = drafting, True
        drafts, drafter = drafting.plan.drafts, self.captures.drafter
        late = not watched and not read_at_once(state.emitted.device) and drafting.needs_no_counts(state)
        unread: list[Counts] = []
        assert drafts is not None
        drafts.load(drafter, state)
        try:
            while not state.finished and (late or state.budget.drafting):
                with state.report.phase("verify"):
                    state.source.begin(state.round().host_emitted)
                    drafting.launch(state, len(unread))
                with state.report.phase("rest"):
                    unread.append(Counts.of(state))
                    if len(unread) > late:  # the round that is one too many is never counted
                        state.report.rounds += 1
                        state.report.row_rounds += sum(not done for done in state.host.done)
                        state.report.sizes[drafting.plan.nodes] += 1
                        state.arrived(unread.pop(0).read())
                yield state
        finally:
            drafts.unload(drafter, state)

    def renew(self) -> None:
        """Choose the next round anew: something changed that rounds bake in, such as a guidance scale."""
        self.round = None


@dataclass(frozen=True)
class Counts:
    """A round's counts on their way to the host."""

    numbers: Tensor  # as `State.counts`, on the host; meaningful once `copied`
    copied: torch.cuda.Event | None  # the event behind the copy; None: there was nothing to wait for

    @classmethod
    def of(cls, state: State) -> "Counts":
        """Begin to copy the counts of a call."""
        counts = state.counts()
        if counts.device.type != "cuda":
            return cls(counts.clone(), None)
        numbers = torch.empty_like(counts, device="cpu", pin_memory=True).copy_(counts, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record(torch.cuda.current_stream(counts.device))
        return cls(numbers, copied)

    def read(self) -> list[int]:
        """The counts; the one wait of a round."""
        if self.copied is not None:
            self.copied.synchronize()
        numbers: list[int] = self.numbers.tolist()
        return numbers


def _recordable(target: Target) -> bool:
    """True if passes of a target may be recorded: they have one shape, and its model lies on a device with graphs."""
    if not (isinstance(target, Capturable) and isinstance(target, OneShape) and isinstance(target, RunsModel)):
        return False
    first = next(target.model.parameters(), None)
    return first is not None and first.device.type in RECORDING


def _exact_on_cpu(target: Target) -> bool:
    """True if a target's weights are float32 on a CPU."""
    weights = target.model.parameters() if isinstance(target, RunsModel) else ()
    kinds = {(weight.device.type, weight.dtype) for weight in weights}
    return kinds == {("cpu", torch.float32)}
