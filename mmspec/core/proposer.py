"""The proposals of a decoder, round by round: what its drafter drafts and its policy keeps.

Neither can end a call. A fault of theirs is an exception, or a draft of another form (`mmspec.core.guard`): the round
goes on without a draft, and one warning per call says why. Out-of-memory errors are raised, and so is every fault under
`MMSPEC_STRICT`.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmspec.core.forced import with_forced
from mmspec.core.guard import checked
from mmspec.core.out_of_memory import out_of_memory
from mmspec.core.policies import Policy, Trimming
from mmspec.core.processors import drafts_forbidden_by
from mmspec.core.protocols import Drafter, Target
from mmspec.core.rules.rule import Rule
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.registry.switches import strict
from mmspec.registry.warn import warn


@dataclass
class Proposer:
    """Drafter and policy, guarded."""

    drafter: Drafter  # bound to the target
    policy: Policy  # decides the budget of each round
    rule: Rule  # says which noise drafts are made with
    k: int  # most units per path
    target: Target  # whose units are drafted
    name: str  # the method's, for warnings

    def start(self, state: State, inputs: Any) -> None:
        """Let the drafter begin a call, which it may refuse with a `ValueError`."""
        with _contained(state, self._drafts, fatal=True, may_refuse=True):
            state.memory = self.drafter.start(state, inputs)

    def propose(self, state: State) -> Draft | None:
        """The round's draft, not rooted; None if nothing was proposed."""
        budget, vocab = self._budget(state), self.target.vocab
        if budget <= 0:
            return None
        noise = self.rule.draft_noise(state.round())
        draft = _draft_or_none(lambda: self.drafter.propose(state, budget, noise), state, self._drafts, vocab)
        if draft is not None:
            draft = with_forced(draft, state.warp, state.live, min(budget, state.budget.width - 1))
            draft = _draft_or_none(partial(self.policy.trim, draft), state, self._decides, vocab, draft)
        if draft is not None and isinstance(self.policy, Trimming) and self.policy.trims:
            state.budget.note(draft, state.done)
        return None if draft is None or not draft.units.shape[1] else draft.compact()

    def observe(self, state: State, step: Step) -> None:
        """Let the drafter see a settled round."""
        if state.budget.drafting:
            with _contained(state, self._drafts, fatal=True):
                self.drafter.observe(state, step)

    def measured(self, state: State, deepest: int, counts: Sequence[int], seconds: float) -> None:
        """Tell the policy what a round gave and took; arguments as in `Policy.observe`."""
        with _contained(state, self._decides):
            self.policy.observe(deepest, counts, seconds)

    def _budget(self, state: State) -> int:
        """Most units per path of this round's draft."""
        bounds = state.budget
        if not self.k or not bounds.drafting or drafts_forbidden_by(state.warp.processors):
            return 0
        with _contained(state, self._decides):
            budget = min(operator.index(self.policy.budget()), self.k, bounds.most)  # caches were made for `most`
            # A call of one shape has one tree up to the end of the text; nodes beyond it are refused on the device.
            return budget * (state.most_room > 0) if bounds.fixed else min(budget, state.most_room)
        return 0

    @property
    def _drafts(self) -> str:
        return f"drafter {self.name}"

    @property
    def _decides(self) -> str:
        return f"policy {type(self.policy).__name__}"


@contextmanager
def _contained(state: State, who: str, *, fatal: bool = False, may_refuse: bool = False) -> Iterator[None]:
    """Run a block of a drafter's or a policy's code: exceptions are counted, and the first one of a call is reported.

    What the block draws from torch's generator is undone: a draft must never change the output. `who` names whose code
    it is. After a `fatal` fault, on which later drafts depend, the rest of the call runs without drafts. Under
    `may_refuse`, a `ValueError` is not a fault but the drafter's refusal of this call, and is raised.
    """
    try:
        with state.source.sheltered():
            yield
    except Exception as error:
        if may_refuse and isinstance(error, ValueError):
            state.source.finish(0)  # a refused call draws nothing
            raise
        if strict() or out_of_memory(error):
            raise
        if not state.report.faults:
            rest = "the rest of this call runs" if fatal else "such rounds run"
            warn(f"{who} failed ({type(error).__name__}: {error}); {rest} without a draft")
        state.report.faults += 1
        state.budget.drafting = state.budget.drafting and not fatal


def _draft_or_none(
    make: Callable[[], Draft], state: State, who: str, vocab: int | None, known: Draft | None = None
) -> Draft | None:
    """The draft that `make` proposes or trims, checked unless it is `known`; None after a fault, which names `who`."""
    with _contained(state, who):
        draft = make()
        return draft if known is not None and draft is known else checked(draft, state, vocab)
    return None
