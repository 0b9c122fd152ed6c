"""The loop. One round is: speculate (draft, verify), settle (accept, commit, observe), one host sync.

The loop knows no modality and no method. Plain decoding is a draft of one node, the root.
"""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from mmspec.core.budget import Budget
from mmspec.core.capabilities import Bounded, Conditioning, Forcing, OneShape, TargetAware, TargetWrapping
from mmspec.core.compile.captured import Captured, Captures, Compile, Way, checked_compile
from mmspec.core.drafters.none import NoDraft
from mmspec.core.noise import Source
from mmspec.core.philox import PhiloxSource
from mmspec.core.policies import Clocked, Fixed, Policy
from mmspec.core.promise import (
    Shape,
    checked_shape,
    in_half_precision,
    longest_draft,
    one_width,
    promised,
    refuse_misfits,
    shape_to_compile,
)
from mmspec.core.proposer import Proposer
from mmspec.core.protocols import Drafter, Target
from mmspec.core.ranks import ranks_of
from mmspec.core.report import Report
from mmspec.core.round import Eager, OwnPasses, Pending
from mmspec.core.rules.match import Match
from mmspec.core.rules.rule import Rule
from mmspec.core.state import State
from mmspec.core.transfer import moved
from mmspec.core.types import Draft, Prefill, Step
from mmspec.core.warp import Warp
from mmspec.registry.numbers import whole
from mmspec.registry.warn import warn


@dataclass(frozen=True)
class Output:
    """The emitted units of every row, `[emitted, *unit]` each, and the call's counts and times."""

    units: list[Tensor]
    report: Report


class Decoder:
    """Target, drafter and rule in one loop.

    Args:
        target: The model whose distribution the output follows.
        drafter: Proposes units; None decodes plainly.
        rule: Decides which drafted units are accepted; default `match`: same seed, same output.
        k: Most units to draft per round and path (`num_speculative_tokens`).
        policy: Decides the budget of each round; default: always `k`.
        name: The name of this combination in reports.
        why: Why it was chosen, if the user did not ask for it by name.
        k_from: Whose number `k` is, for reports; "" for the user's.
        shape: Nodes of the passes after the prefill. `any`: as many as the draft has. `one`: always as many as the
            widest draft, so that in half precision, too, the output equals plain decoding's with the same rows and
            width, to the bit (`report.shape`). A number: always so many; without a drafter this is plain decoding at
            the width of a method. None: `one` where the target prefers it (on CUDA in half precision) or rounds are
            captured, else `any`.
        compile: How rounds are captured, which needs one shape: `one`, a number or None; under a rule that is not
            invariant this is a shape alone, and promises no text. None: on CUDA a round is recorded as it is and
            replayed as one graph. True: torch compiles it, too, on every device. `auto`: where that is faster, which is
            measured in the first call of a shape. False: not at all. What cannot be captured is decoded by the eager
            loop, with a warning that says why.

    Raises:
        ValueError: The three cannot be verified exactly together; the error names the missing words. Or they cannot
            keep to one shape, or drafts have more nodes than `shape`, or rounds of any shape are to be compiled.

    Example:
        `Decoder(target, drafter, k=8).generate(prompt, limit=200, seed=0).units`
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        rule: Rule | None = None,
        *,
        k: int = 8,
        policy: Policy | None = None,
        name: str | None = None,
        why: str = "",
        k_from: str = "",
        shape: Shape = "any",
        compile: Compile = None,
    ) -> None:
        k = whole("k", k)
        self.target = target
        self.drafter: Drafter = drafter if drafter is not None else NoDraft()
        self.rule: Rule = rule if rule is not None else Match()
        self.k = k if drafter is not None else 0
        policy = policy if policy is not None else Fixed(self.k)
        self.name = name or type(self.drafter).__name__
        self.why = why
        self.k_from = k_from if drafter is not None else ""
        self.compile = checked_compile(compile)
        self.shape = checked_shape(shape)
        if self.compile:
            self.shape = shape_to_compile(self.shape, target)
            self.compile = False if self.shape == "any" else self.compile  # another decoder like this one says it once
        refuse_misfits(self.target, self.drafter, self.rule)
        if isinstance(self.rule, TargetWrapping):
            self.target = self.rule.wrap(target)
        if isinstance(self.drafter, TargetWrapping):
            self.target = self.drafter.wrap(self.target)
        self.drafter.bind(self.target)
        if isinstance(self.rule, TargetAware):
            self.rule.bind(self.target)
        self.ranks = ranks_of(self.target)
        self.ranks.refuse_parting(self.rule, policy, self.drafter)
        self.proposer = Proposer(self.drafter, policy, self.rule, self.k, self.target, self.name)
        self.eager = Eager(OwnPasses(self.target), self.rule, self.proposer, self.ranks)
        self.captures = Captures(self.target, self.drafter, self.rule, self.compile, one_shape=shape is not None)
        self.one_width()  # refuses a shape that cannot be kept

    @property
    def policy(self) -> Policy:
        """Decides the budget of each round."""
        return self.proposer.policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self.proposer.policy = policy

    def one_width(self) -> int | None:
        """Nodes of every pass after the prefill; None if passes may have any number of nodes."""
        return self._one_width(self.captures.way)

    def _one_width(self, way: Way | None) -> int | None:
        shape = "one" if self.shape is None and way == "recorded" else self.shape
        return one_width(shape, self.target, self.drafter, self.rule, self.k, way is not None)

    def without_drafts(self) -> "Decoder":
        """This decoder without its drafter, in passes of the same width."""
        width = self.one_width() if self.rule.exactness == "invariant" else None
        return Decoder(self.target, None, self.rule, name=self.name, shape=width or "any")

    def start(
        self,
        inputs: Any,
        limit: int,
        *,
        seed: int | Sequence[int] = 0,
        source: Source | None = None,
        warp: Warp | None = None,
        ends: int | Sequence[int] | None = None,
    ) -> State:
        """Prefill, and emit the first unit.

        Args:
            inputs: The target's prompt.
            limit: Units wanted per row, at least 1.
            seed: One seed, or one per row; a row's output does not depend on its batch.
            source: Noise to use instead of `seed`.
            warp: Turns scores into distributions; default: sample at temperature 1.
            ends: Unit ids that end a row.

        Raises:
            ValueError: The prompt or a number does not fit.
        """
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        warp = self._law(warp)
        way = self._way(warp, source)
        nodes = self._one_width(way)  # the same for every limit
        budget = self._budget(limit, nodes)
        report = Report(self.name, k=budget.k, k_from=self.k_from, half=in_half_precision(self.target))
        self.ranks.meet(inputs, self.name, limit, budget.k, budget.width)
        with report.phase("prefill"):
            prefill = self._prefill(inputs, limit, budget)
        self._promise(report, prefill, nodes, warp)
        if source is None:
            source = PhiloxSource.seeded(seed, len(prefill.prompt), prefill.prompt.device)
        if warp.forced is not None:  # a round that is recorded cannot send it
            warp = replace(warp, forced=moved(warp.forced, prefill.prompt.device))
        context = self.target.context if isinstance(self.target, Bounded) else None
        how: dict[str, Any] = {"source": source, "warp": warp, "report": report, "ends": ends, "context": context}
        state = State.begin(prefill, limit, budget, **how)
        state.player = self._player(way, budget)
        self._append_first(state, prefill)
        self.proposer.start(state, inputs)
        state.hidden = None  # of a long prompt they are many
        return state

    def _law(self, warp: Warp | None) -> Warp:
        warp = warp if warp is not None else Warp()
        if warp.forced is None and isinstance(self.target, Forcing):
            return replace(warp, forced=self.target.forced)
        return warp

    def _way(self, warp: Warp, source: Source | None) -> Way | None:
        """The way in which the rounds of a call are to be captured; None: not at all."""
        way = self.captures.way
        refusal = self.captures.refusal(warp, source) if way == "recorded" else ""
        if refusal:
            warn(f"this call is not recorded, and runs eagerly: {refusal}")
            return None
        if way == "recorded" and isinstance(self.policy, Clocked) and self._one_width(way) is not None:
            warn("recorded rounds take equally long, however few units a policy drafts: compare with policy='fixed'")
        return way

    def _player(self, way: Way | None, budget: Budget) -> Eager | Captured:
        """The player of a call whose rounds are to be captured in a way; None: not at all."""
        if way is None or not budget.fixed or self.captures.refused:
            return self.eager
        return Captured(self.captures, self.eager, way)

    def _budget(self, limit: int, nodes: int | None) -> Budget:
        """The bounds of a call's drafts, whose passes have so many nodes; None: any number."""
        k = longest_draft(self.target, self.k, limit if nodes is None else None)
        return Budget(k, nodes or self.drafter.width(k) + 1, nodes is not None)

    def _prefill(self, inputs: Any, limit: int, budget: Budget) -> Prefill:
        if not budget.fixed:
            return self.target.start(inputs, limit, budget.width)
        assert isinstance(self.target, OneShape)
        return self.target.start_fixed(inputs, limit, budget.width)

    def _promise(self, report: Report, prefill: Prefill, nodes: int | None, warp: Warp) -> None:
        """Say in the report what a call promises."""
        rows = len(prefill.prompt) * (1 if warp.guidance is None else 2)
        ours: dict[str, Any] = {"lone": self.captures.lone, "compile": self.compile, "prefill": prefill, "rows": rows}
        report.take(promised(self.target, self.drafter, self.rule, self.policy, nodes=nodes, **ours))
        report.wrt = self.drafter.wrt if isinstance(self.drafter, Conditioning) else ""
        report.prompts, report.products = prefill.prompts, prefill.products
        if report.rounded:
            warn(prefill.rounding)

    def _append_first(self, state: State, prefill: Prefill) -> None:
        """Emit the unit that the prefill's scores are of."""
        draft, output = Draft.alone(state.root), prefill.output
        if prefill.hidden is not None:
            output = replace(output, hidden=prefill.hidden[:, -1:])
        self.eager.append(state, draft, state.warp(output, draft, state.prefix))
        state.sync()

    def speculate(self, state: State) -> Pending:
        """Draft and verify. Nothing is committed, so this may run before the last round's truth is known."""
        return self.eager.verify(state, self.eager.propose(state))

    def settle(self, state: State, pending: Pending, truth: Tensor | None = None) -> Step:
        """Accept (or compare with a truth that came later), commit, and let the drafter observe.

        Args:
            state: The call.
            pending: What `speculate` returned.
            truth: `[batch, n, *unit]`, the next `n` units as they really were; the accepted path then follows them, and
                the last one (or the first that was not drafted) becomes the new root. A row emits at most `n` units.
        """
        return self.eager.settle(state, pending, truth)

    def advance(self, state: State, truth: Tensor | None = None, pending: Pending | None = None) -> None:
        """One whole round, with its host sync and its counters.

        Args:
            state: The call.
            truth: As in `settle`.
            pending: This round's result of `speculate`, if it already ran; None: it runs now.
        """
        began, before = time.perf_counter(), state.host.emitted
        state.report.rounds += 1
        state.report.row_rounds += sum(not done for done in state.host.done)
        if truth is None and pending is None:
            deepest = state.player.play(state, self.eager.propose(state))
        else:
            pending = pending if pending is not None else self.speculate(state)
            with state.report.phase("rest"):
                self.settle(state, pending, truth)
            deepest = pending.draft.index.deepest
        with state.report.phase("rest"):
            state.sync()
            self.eager.passes.synced(state)
        furthest_behind_first = sorted(range(state.rows), key=before.__getitem__)
        counts = [state.host.emitted[row] - before[row] for row in furthest_behind_first]
        self.proposer.measured(state, deepest, counts, time.perf_counter() - began)

    def rounds(
        self, inputs: Any, limit: int, *, watched: bool = True, pauses: Sequence[int] = (), **options: Any
    ) -> Generator[State, None, None]:
        """The loop: the call's state after prefill, and after every round until all rows are done.

        Args:
            inputs: The target's prompt.
            limit: Units wanted per row.
            watched: Whether anybody reads units or stops rows between rounds. If not, the host may read the counts of
                compiled rounds one round late (`mmspec.core.compile.captured`), and a state that is yielded may lag.
            pauses: Numbers of units, ascending and below the limit, at which every row waits for the others: the state
                is then yielded with `waits`, and what is changed there holds from the next unit on, whatever was
                drafted. Who changes the warp or what guidance leads away from lets the state's player `renew` what it
                has baked in. Somebody watches such a call.
            **options: As in `start`.
        """
        state = self.start(inputs, limit, **options)
        if pauses:
            state.go_on(pauses[0])
        yield state
        for pause in (*pauses, None):
            if state.pause != pause:
                state.go_on(pause)
            yield from state.player.own_rounds(state, self.policy, watched or bool(pauses))
            self.eager.passes.synced(state)
            while not state.finished:
                self.advance(state)
                yield state
        self.ranks.part(state)

    def generate(
        self, inputs: Any, limit: int, *, on_step: Callable[[State], None] | None = None, **options: Any
    ) -> Output:
        """Decode to the end.

        Args:
            inputs: The target's prompt.
            limit: Units wanted per row.
            on_step: Called after every host sync; streamers read `state.output()` there. Raising stops the call.
            **options: As in `start`.
        """
        for state in self.rounds(inputs, limit, watched=on_step is not None, **options):
            if on_step is not None:
                on_step(state)
        return Output(state.output(), state.report)
