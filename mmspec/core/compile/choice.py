"""The choice of a captured round for a call, and the way back where none is possible.

What cannot be captured is decoded by the eager loop, with one warning that says why.
"""

from collections.abc import Hashable
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import torch

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
        """A captured round that takes this round's draft (not rooted), behind another one, if there was one; None if
        there can be none.
        """
        self._own_trees = self._own_trees or (before is not None and not before.plan.holds(draft.index))
        index = draft.index.padded(state.budget.width)
        family = family_of(draft, self.rule, state.warp.sample, self.windows)
        shared = None if self._own_trees or index.listed is None else index
        lone = self.lone and state.budget.width > 1
        return self._take_over(state, self._plan(state, way, shared, family=family, lone=lone))

    def drafting_round(self, state: State, policy: Policy, way: Way) -> CapturedRound | None:
        """The captured round that makes the next drafts, too; None: they come from outside.

        The policy's budget must be the same in all rounds.
        """
        drafter = self.inside
        if drafter is None or not self._may_draft_inside(drafter, state, policy):
            return None
        k = min(policy.budget(), state.budget.k)
        if k < 1 <= state.budget.k:
            return None  # no drafts are wanted
        inside, tree = drafter.inside(k, state), None
        if inside.parents is not None:
            tree = TreeIndex.static((-1, *(parent + 1 for parent in inside.parents)), state.emitted.device)
            tree = tree.padded(state.budget.width)
        return self._take_over(state, self._plan(state, way, tree, drafts=inside), (type(drafter), inside.key, k))

    def _may_draft_inside(self, drafter: DraftsInside, state: State, policy: Policy) -> bool:
        if type(policy) is not Fixed or not state.budget.drafting:
            return False
        if read_at_once(state.emitted.device) and not drafter.everywhere:
            return False
        if self.refusal(state.warp, state.source) or drafts_forbidden_by(state.warp.processors):
            return False
        return drafter.fits_inside(state)

    def _plan(self, state: State, way: Way, index: TreeIndex | None, **more: Any) -> Plan:
        nodes, k = state.budget.width, state.budget.k
        deepest = min(nodes - 1, max(k, 1)) if index is None else index.deepest
        ahead = read_at_once(state.emitted.device) or not isinstance(state.source, PhiloxSource)
        more["keyed"] = "none" if not isinstance(state.source, Counting) else "fresh" if ahead else "all"
        more["compiled"] = way == "compiled"
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
