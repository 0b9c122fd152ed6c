"""Calls that share the target's passes, each in a thread of its own.

A call stays what it is alone: its loop, law, noise, drafter's memory, criteria and limit are its own. When it has
drafted, it waits until every other one has; then one pass is over the rows of all. So rows join and leave between
passes, and calls that have nothing in common but the target are a batch (Orca, Yu et al., OSDI 2022: scheduling by
iterations; Batch Speculative Decoding Done Right, arXiv 2510.22876: a row that ends is replaced by the next).
One thread computes at a time: who waits lets the next one.

The policy sees the drafts of all calls together, and the time from pass to pass, so that lengths follow the load
(SmartSpec, arXiv 2406.14066).
"""

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.budget import Budget
from mmspec.core.capabilities import LengthAware, RunsTarget, Sharing, WithinPasses
from mmspec.core.compile.captured import Captures
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.none import NoDraft
from mmspec.core.out_of_memory import out_of_memory
from mmspec.core.policies import Fixed, Policy
from mmspec.core.round import Eager, Passed, rooted
from mmspec.core.state import State
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.registry.switches import strict
from mmspec.registry.warn import warn

Made = TypeVar("Made")


@dataclass(eq=False)
class Sharer:
    """A call that takes part."""

    rows: int
    prompt: int  # units that it reads first
    state: State | None = None  # from its first pass on
    proposed: Draft | None = None
    waits: bool = False  # for a pass
    target: Any = None  # the one that reads its prompt
    kind: Hashable = None  # of calls whose rows can be among its own; None: there are none
    passed: Passed | BaseException | None = None  # its part of the last pass, or what ended that
    kept: tuple[Tensor, Tensor] | None = None  # path and count of its last round


class SharedPasses:
    """The passes of a target, over the rows of all calls that run.

    `rows` are the most rows of a pass, `prompt` the most units of prompts that are read between two passes, if there
    are others to wait for them. Passes run in `thread`; without one, in the thread of whichever call came last.
    """

    def __init__(
        self, target: Any, policy: Policy, k: int, *, rows: int, prompt: int, owned: bool, thread: Executor | None
    ) -> None:
        self._target, self._policy, self._k = target, policy, k
        self._most, self._most_read, self._thread = rows, prompt, thread
        self._owned, self.known = owned, False  # whether a call has found out about the model what holds for the next
        self._turn = threading.Condition()  # held by the thread that computes
        self._queue = deque[Sharer]()  # who waits to begin, the first come first
        self._calls: list[Sharer] = []
        self._batches: dict[Hashable, Batch] = {}  # by the kind of calls
        self._read = 0  # units of prompts since the last pass
        self._last: tuple[float, int] | None = None  # when the last pass began, and how deep its drafts were

    @contextmanager
    def call(self, inputs: Any) -> Iterator[Sharer]:
        """A call with these inputs; it begins when it is its turn."""
        sharer = Sharer(*self._target.size(inputs))
        self._queue.append(sharer)  # before its turn: no pass begins while the next one may come in
        with self._turn:
            try:
                self._turn.wait_for(lambda: self._queue[0] is sharer and self._lets_in())
                sharer.target = self._target.beside() if self.known else self._target
                self._calls.append(sharer)
                self._read += sharer.prompt
            finally:
                self._queue.remove(sharer)
                self._turn.notify_all()
            try:
                yield sharer
            finally:
                self._calls.remove(sharer)  # its rows go with the next pass
                if not self._calls:
                    self._forget()
                    self.known = self.known and self._owned
                if not any(sharer in batch.calls for batch in self._batches.values()):
                    sharer.state = None
                self._pass_if_all_wait()
                self._turn.notify_all()

    def run(self, compute: Callable[[], Made]) -> Made:
        """The result of a function that runs the model, whose turn it is."""
        if self._thread is None:
            return compute()
        with_no_grad = torch.no_grad()(compute)  # a setting of the thread's
        return self._thread.submit(with_no_grad).result()

    def waiting(self) -> int:
        """Calls that wait to begin."""
        return len(self._queue)

    def running(self) -> int:
        """Rows of calls that have begun."""
        return sum(call.rows for call in self._calls)

    def _lets_in(self) -> bool:
        """True if the next call that waits may begin."""
        if not self._queue or not self._calls:
            return bool(self._queue)
        fits = self.running() + self._queue[0].rows <= self._most
        return fits and (not self._read or self._read + self._queue[0].prompt <= self._most_read)

    def verify(self, sharer: Sharer, state: State, proposed: Draft | None) -> Passed:
        """A call's part of the next pass; see `Passes`."""
        if sharer.state is None:
            sharer.state, sharer.kind = state, self._target.kind(state.cache)
        sharer.proposed, sharer.waits = proposed, True
        self._pass_if_all_wait()
        self._turn.wait_for(lambda: not sharer.waits)
        passed, sharer.passed = sharer.passed, None
        if isinstance(passed, BaseException):
            raise passed
        assert passed is not None
        return passed

    def commit(self, sharer: Sharer, state: State, path: Tensor, count: Tensor) -> None:
        """A call's part of a commit, which is done before the next pass."""
        if sharer.kind is None:
            self._target.commit(state.cache, path, count)
        sharer.kept = path, count

    def _pass_if_all_wait(self) -> None:
        if not self._calls or self._lets_in() or not all(call.waits for call in self._calls):
            return
        try:
            self._measure()
            began, deepest = time.perf_counter(), 0
            for kind in dict.fromkeys((*self._batches, *(call.kind for call in self._calls))):
                deepest = max(deepest, 0 if kind is None else self._pass(kind))
            for call in self._calls:
                if call.kind is None:
                    call.passed = self._passed_alone(call)
            self._last = began, deepest
        except BaseException as error:  # it ends the calls, each in its thread
            self._forget()
            for call in self._calls:
                call.passed = error
        self._read = 0
        for call in self._calls:
            call.waits, call.kept = False, None
        self._turn.notify_all()

    def _passed_alone(self, call: Sharer) -> Passed:
        assert call.state is not None
        draft = rooted(call.state, call.proposed)
        return Passed(draft, self._verify(call.state.cache, draft), draft.nodes)

    def _verify(self, cache: Any, draft: Draft) -> TargetOutput:
        output: TargetOutput = self.run(lambda: self._target.verify(cache, draft))
        return output

    def _pass(self, kind: Hashable) -> int:
        """Run the pass over all calls of a kind: how deep their drafts are."""
        batch = self._batches.setdefault(kind, Batch(self._target))
        batch.commit()
        batch.become([call for call in self._calls if call.kind == kind])
        if not batch.calls:
            del self._batches[kind]
            return 0
        states = [call.state for call in batch.calls if call.state is not None]
        if isinstance(self._target, LengthAware):
            self._target.synced(batch.cache, [n for state in states for n in state.host.emitted])
        drafts = [rooted(*each) for each in zip(states, self._trimmed(batch.calls), strict=True)]
        merged = together(drafts)
        output = self._verify(batch.cache, merged)
        first = 0
        for call, draft in zip(batch.calls, drafts, strict=True):
            rows = slice(first, first + call.rows)
            call.passed = Passed(draft, part_of(output, rows, draft.nodes), merged.nodes)
            first += call.rows
        return max(draft.index.deepest for draft in drafts)

    def _trimmed(self, calls: Sequence[Sharer]) -> list[Draft | None]:
        """The calls' drafts, not rooted, as far as the policy wants them verified."""
        drafts = [call.proposed for call in calls]
        if not all(draft is None or draft.index.is_chain for draft in drafts) or not any(drafts):
            return drafts
        roots = [call.state.root for call in calls if call.state is not None]
        all_drafts = [Draft.empty(root) if draft is None else draft for root, draft in zip(roots, drafts, strict=True)]
        deepest = max(draft.units.shape[1] for draft in all_drafts)
        valid = torch.cat([pad(draft.valid, (0, deepest - draft.valid.shape[1])) for draft in all_drafts])
        scores = [_score(draft) for draft in all_drafts]
        score = torch.cat([pad(each, (0, deepest - each.shape[1]), value=-torch.inf) for each in scores])
        units = torch.cat([pad(draft.units, (0, deepest - draft.units.shape[1])) for draft in all_drafts])
        kept = valid
        with self._contained():
            kept = self._policy.trim(Draft.chain(units, valid=valid, score=score)).valid
        parts = kept.split([call.rows for call in calls])
        return [
            None if draft is None else replace(draft, valid=part[:, : draft.units.shape[1]]).compact()
            for draft, part in zip(drafts, parts, strict=True)
        ]

    def _measure(self) -> None:
        """Tell the policy what the last passes gave and took, if they were over the calls that there are."""
        calls = [call for call in self._calls if call.kind is not None]
        if isinstance(self._policy, Fixed):
            return  # it reads nothing of the device
        if self._last is None or not calls or any(call.kept is None for call in calls):
            return
        (began, deepest), gave = self._last, list[tuple[int, int]]()
        for call in calls:
            assert call.state is not None and call.kept is not None
            gave += zip(call.state.host.emitted, call.kept[1].tolist(), strict=True)
        counts = [count for _, count in sorted(gave)]  # of the row that is furthest behind first
        with self._contained():
            self._policy.observe(deepest, counts, time.perf_counter() - began)

    @contextmanager
    def _contained(self) -> Iterator[None]:
        """A block of the policy's code; after a fault of it drafts are verified as they are."""
        try:
            yield
        except Exception as error:
            if strict() or out_of_memory(error):
                raise
            warn(f"policy {type(self._policy).__name__} failed ({type(error).__name__}: {error}); drafts stay whole")
            self._policy = Fixed(self._k)

    def _forget(self) -> None:
        for call in (call for batch in self._batches.values() for call in batch.calls):
            call.state = None
        self._batches, self._last = {}, None


class Batch:
    """Calls of one kind, whose rows are in one cache of the target."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.calls: list[Sharer] = []  # in the order of their rows
        self.cache: Any = None

    def commit(self) -> None:
        """Commit what the calls kept of the last pass; of those that ended in it, nothing."""
        if not self.calls:
            return
        kept = [call.kept or _nothing(call) for call in self.calls]
        depth = max(path.shape[1] for path, _ in kept)
        path = torch.cat([pad(path, (0, depth - path.shape[1]), value=-1) for path, _ in kept])
        self._target.commit(self.cache, path, torch.cat([count for _, count in kept]))

    def become(self, calls: Sequence[Sharer]) -> None:
        """Have the rows of these calls: without those that ended, with those that have begun."""
        stay, rows, first = list[Sharer](), list[int](), 0
        for call in self.calls:
            if call in calls:
                stay.append(call)
                rows += range(first, first + call.rows)
            else:
                call.state = None  # it knows the call, too: a cycle would keep its tensors for long
            first += call.rows
        if len(stay) < len(self.calls):
            self.cache = self._target.taken(self.cache, rows) if stay else None
        new = [call for call in calls if call not in stay]
        caches = [] if self.cache is None else [self.cache]
        for call in new:
            assert call.state is not None
            caches.append(call.state.cache)
            call.state.cache = None
        if new:
            self.cache = self._target.joined(caches)
        self.calls = [*stay, *new]


def _nothing(call: Sharer) -> tuple[Tensor, Tensor]:
    assert call.state is not None
    count = torch.zeros_like(call.state.emitted)
    return count.new_empty(call.rows, 0), count


def together(drafts: Sequence[Draft]) -> Draft:
    """Rooted drafts of several calls as one, of units alone: the narrower ones with invalid nodes behind their own."""
    nodes = max(draft.nodes for draft in drafts)
    units, valid = [], []
    for draft in drafts:
        missing = nodes - draft.nodes
        units.append(torch.cat([draft.units, draft.units[:, :1].expand(-1, missing)], 1))
        valid.append(pad(draft.valid, (0, missing)))
    rows = [len(draft.units) for draft in drafts]
    return Draft(torch.cat(units), _forest([draft.index for draft in drafts], rows, nodes), torch.cat(valid))


def _forest(trees: Sequence[TreeIndex], rows: Sequence[int], nodes: int) -> TreeIndex:
    """The trees of all rows, with so many nodes each."""
    if all(tree.is_chain for tree in trees):
        return TreeIndex.chain(nodes, trees[0].parent.device)
    padded = [tree.padded(nodes) for tree in trees]

    def of_all(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part.expand(n, *part.shape[1:]) for part, n in zip(parts, rows, strict=True)])

    return TreeIndex(
        of_all([tree.parent for tree in padded]),
        of_all([tree.depth for tree in padded]),
        of_all([tree.ancestor for tree in padded]),
        of_all([tree.rank for tree in padded]),
        deepest=max(tree.deepest for tree in padded),
        widest=max(tree.widest for tree in padded),
        is_chain=False,
    )


def part_of(output: TargetOutput, rows: slice, nodes: int) -> TargetOutput:
    """The output at the first nodes of some rows."""

    def at(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[rows, :nodes]

    return TargetOutput(at(output.logits), at(output.null), None, at(output.hidden), at(output.auxiliary))


def _score(draft: Draft) -> Tensor:
    """The log probabilities of reaching the nodes of a chain; each is right in half of cases if it does not say."""
    if draft.score is not None:
        return draft.score
    depths = torch.arange(1, draft.units.shape[1] + 1, device=draft.units.device)
    return (0.5**depths).log().expand(draft.valid.shape)


@dataclass(frozen=True)
class Asked:
    """A policy's budgets, for one of several calls whose drafts it trims together."""

    clocked: ClassVar[bool] = True  # what is cut depends on the other calls

    policy: Policy

    def budget(self) -> int:
        return self.policy.budget()

    def trim(self, draft: Draft) -> Draft:
        return draft

    def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
        """Does nothing: the policy sees the passes of all."""


@dataclass(frozen=True)
class CallPasses:
    """Passes of one call among those of others."""

    shared: SharedPasses
    sharer: Sharer

    def verify(self, state: State, proposed: Draft | None) -> Passed:
        return self.shared.verify(self.sharer, state, proposed)

    def commit(self, state: State, path: Tensor, count: Tensor) -> None:
        self.shared.commit(self.sharer, state, path, count)

    def synced(self, state: State) -> None:
        """Does nothing: the lengths of all rows are told before a pass."""


class SharingDecoder(Decoder):
    """A decoder whose calls share passes, if they run at the same time, each in a thread of its own.

    Args:
        decoder: The decoder whose parts it has.
        rows: Most rows of a pass; further calls wait until some have ended, the first come first.
        prompt: Most units of prompts that are read between two passes, while others wait; a longer prompt is read
            between two passes alone.
        owned: Whether nobody else can change the model: what the first call finds out about it then holds for all.
        thread: An executor of one thread, in which the model's passes run (`mmspec.core.threads`); None: in the threads
            of the calls.

    Raises:
        ValueError: Its target cannot be shared, or its drafter acts inside of the target's own passes.
    """

    def __init__(
        self,
        decoder: Decoder,
        rows: int = 8,
        prompt: int = 512,
        *,
        owned: bool = False,
        thread: Executor | None = None,
    ) -> None:
        target = shareable(decoder)
        vars(self).update(vars(decoder))
        self.target, self.shape, self.compile = target, "any", False
        policy = copy.deepcopy(decoder.policy)
        self.proposer = replace(decoder.proposer, policy=Asked(policy))
        self.captures = Captures(target, self.drafter, self.rule, False, one_shape=False)
        self.shared = SharedPasses(target, policy, self.k, rows=rows, prompt=prompt, owned=owned, thread=thread)

    def rounds(self, inputs: Any, limit: int, **options: Any) -> Generator[State, None, None]:
        """As of any decoder; begins when it is the call's turn. Who leaves it early closes it."""
        with self.shared.call(inputs) as sharer:
            call = copy.copy(self)
            call.target = sharer.target
            call.eager = Eager(CallPasses(self.shared, sharer), self.rule, self.proposer, self.ranks)
            yield from super(SharingDecoder, call).rounds(inputs, limit, **options)

    def _prefill(self, inputs: Any, limit: int, budget: Budget) -> Prefill:
        read = partial(super()._prefill, inputs, limit, budget)
        prefill = self.shared.run(read)
        self.shared.known = True
        return prefill

    def without_drafts(self) -> Decoder:
        other = copy.copy(self)
        other.drafter, other.k = NoDraft(), 0
        other.proposer = replace(self.proposer, drafter=other.drafter, k=0)
        return other


def shareable(decoder: Decoder) -> Any:
    """The target for calls of a decoder that share its passes; refuses a decoder whose calls cannot."""
    target, drafter = decoder.target, decoder.drafter
    if isinstance(drafter, WithinPasses) or (isinstance(drafter, RunsTarget) and drafter.runs_target):
        raise ValueError(f"{decoder.name} drafts with the target's own passes, which belong to one call")
    if not isinstance(target, Sharing):
        raise ValueError(f"the passes of {type(target).__name__} are over the rows of one call")
    return target.to_share()
