"""A watched drafter: every fault is recorded under the check that asks about it, and repaired.

So one fault fails one check, and the run goes on and shows the other faults.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.capabilities import Advising, TargetWrapping
from mmspec.core.distributions import Categorical, Mixed, PointMass
from mmspec.core.drafters.host import HostDrafter, HostDrafterAdapter
from mmspec.core.guard import form_error
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Drafter, Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Scores, Step, Verdict
from mmspec.testing.conformance.promise import Broken, said

FAILED = -1
"""The budget that is recorded for a round in which the drafter raised."""
SHARED = "drew from a generator that all calls share (torch's or Python's), and not from `noise`"


@dataclass
class Log:
    """The record of a drafter or a rule."""

    # Faults by check, a sentence each
    wrong: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    # The largest value of each measured quantity
    most: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    count: Counter[str] = field(default_factory=Counter)  # the number of things seen of each kind

    def reach(self, kind: str, value: float) -> None:
        """Record a value, if it is the largest."""
        self.most[kind] = max(self.most[kind], value)

    def unbroken(self, check: str, number: str) -> str:
        """`number`, unless a fault is recorded under `check`."""
        wrong = self.wrong[check]
        if wrong:
            raise Broken(wrong[0], f"{len(wrong)} times")
        return number


class Watched:
    """A drafter that passes every call on to another one, records faults, and never raises."""

    def __init__(self, drafter: Drafter) -> None:
        if isinstance(drafter, HostDrafterAdapter):
            drafter.author = WatchedAuthor(drafter.author, self)
        self.drafter = drafter
        self.log = Log()
        self.rounds: list[tuple[int, Draft]] = []  # the budget and the repaired draft, not rooted, of every round
        self.offers, self.needs = drafter.offers, drafter.needs
        self.advice = drafter.advice if isinstance(drafter, Advising) else ""
        self._vocab: int | None = None
        self._lost = False
        self._cache: Any = None  # the target's, while a drafter's method runs that must not commit to it

    def wrap(self, target: Target) -> Target:
        wrapped = copy(self.drafter.wrap(target) if isinstance(self.drafter, TargetWrapping) else target)
        commit = wrapped.commit

        def committed(cache: Any, path: Tensor, count: Tensor) -> None:
            if cache is not None and cache is self._cache:
                self.log.wrong["inputs-stay"].append("it committed to the target's cache, which the decoder alone does")
            else:
                commit(cache, path, count)

        vars(wrapped)["commit"] = committed
        return wrapped

    def bind(self, target: Target) -> None:
        self._vocab = target.vocab
        self.drafter.bind(target)

    def width(self, k: int) -> int:
        return self.drafter.width(k)

    def start(self, state: State, inputs: Any) -> Any:
        self._lost = False
        prompt = Snapshot(inputs)
        with self._unchanged(state, "start"):
            try:
                return self.drafter.start(state, inputs)
            except Exception as error:
                self._failed("start", error)
            finally:
                if prompt.restore():
                    self.log.wrong["inputs-stay"].append("start changed the prompt")
        return None

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        draft, asked = Draft.empty(state.root), k
        with self._unchanged(state, "propose"):
            try:
                if not self._lost:
                    draft = self.drafter.propose(state, k, noise)
            except Exception as error:
                self._failed("propose", error)
                asked = FAILED
        draft = self._inspected(state, k, noise, draft)
        self.rounds.append((asked, draft))
        return draft

    def observe(self, state: State, step: Step) -> None:
        with self._unchanged(state, "observe"):
            try:
                if not self._lost:
                    self.drafter.observe(state, step)
            except Exception as error:
                self._failed("observe", error)

    def _failed(self, where: str, error: Exception) -> None:
        self.log.wrong["never-raises"].append(f"{where}: {said(error)}")
        self._lost = self._lost or where != "propose"  # after a failed start or observe, later drafts mean nothing

    @contextmanager
    def _unchanged(self, state: State, where: str) -> Iterator[None]:
        """A block in which a drafter must not change what is not its own; changes are recorded, and undone."""
        drawn = torch.get_rng_state(), random.getstate()
        self._cache = state.cache
        with _unchanged(state, self.log, where):
            yield
        self._cache = None
        if not torch.equal(drawn[0], torch.get_rng_state()) or drawn[1] != random.getstate():
            self.log.wrong["same-seed-same-draft"].append(f"{where} {SHARED}")

    def _inspected(self, state: State, k: int, noise: DraftNoise, draft: Draft) -> Draft:
        """The draft with every fault repaired: faulty nodes become invalid, or the whole draft is dropped."""
        wrong, empty = self.log.wrong, Draft.empty(state.root)
        strange = form_error(draft, state.root)
        if strange:
            wrong["drafts-have-their-shape"].append(strange)
            return empty
        nodes, index = draft.units.shape[1], draft.index
        self.log.reach("nodes", nodes)
        self.log.count["units"] += draft.units.numel()
        if not nodes:
            return draft
        order = torch.arange(1, nodes + 1)
        parent = index.parent[:, 1:]
        if bool(((parent < 0) | (parent >= order)).any()):
            wrong["parents-come-first"].append(f"parents {parent[0].tolist()}, the root counted as 0")
            return empty
        if nodes > self.width(k):
            wrong["fits-the-budget"].append(f"{nodes} nodes where width({k}) is {self.width(k)}")
            return empty
        draft = self._in_vocabulary(draft)
        depth = index.depth[:, 1:]
        live = live_nodes(draft) & ~state.done[:, None]
        deepest = int(torch.where(live, depth, 0).max())
        self.log.reach("depth", deepest)
        if deepest > k:
            wrong["fits-the-budget"].append(f"a node at depth {deepest} where k is {k}")
            draft = replace(draft, valid=draft.valid & (depth <= k))
        self._siblings(draft, live, noise)
        return self._normalised(draft)

    def _in_vocabulary(self, draft: Draft) -> Draft:
        if self._vocab is None:
            return draft
        inside = (draft.units >= 0) & (draft.units < self._vocab)
        if bool(inside.all()):
            return draft
        strange = int(draft.units[~inside][0])
        self.log.wrong["units-in-vocabulary"].append(f"id {strange}; ids are 0 … {self._vocab - 1}")
        return replace(draft, units=torch.where(inside, draft.units, 0), valid=draft.valid & inside)

    def _siblings(self, draft: Draft, live: Tensor, noise: DraftNoise) -> None:
        if not noise.shared and draft.distribution is not None:
            return  # sampled with replacement: the distribution allows equal siblings
        parent = draft.index.parent[:, 1:].expand(len(live), -1)
        twins = (parent[:, :, None] == parent[:, None]) & (draft.units[:, :, None] == draft.units[:, None])
        twins = twins.flatten(3).all(-1) if twins.dim() > 3 else twins
        earlier = torch.ones(parent.shape[1], parent.shape[1]).tril(-1).bool()
        repeated = int((twins & earlier & live[:, :, None] & live[:, None]).any(-1).sum())
        self.log.count["twins"] += repeated
        self.log.count["live"] += int(live.sum())
        if repeated:
            self.log.wrong["siblings-differ"].append(f"{repeated} nodes repeat a sibling")

    def _normalised(self, draft: Draft) -> Draft:
        mixed = draft.distribution if isinstance(draft.distribution, Mixed) else None
        distribution = draft.distribution if mixed is None else mixed.distribution
        if not isinstance(distribution, Categorical):
            return draft
        total = distribution.probs.sum(-1)
        checked = draft.valid if mixed is None else draft.valid & mixed.random
        off = float(((total - 1).abs() * checked).max())
        self.log.reach("off", off)
        self.log.count["distributions"] += total.numel()
        if off <= 1e-4 and not bool((distribution.probs < 0).any()):
            return draft
        self.log.wrong["distributions-are-normalised"].append(f"a distribution sums to {1 - off:.4g} or {1 + off:.4g}")
        repaired = replace(distribution, probs=distribution.probs.clamp(min=0) / total[..., None].clamp(min=1e-9))
        return replace(draft, distribution=repaired if mixed is None else replace(mixed, distribution=repaired))


class WatchedAuthor:
    """A drafter in plain Python whose lists are looked at before they become a draft."""

    def __init__(self, author: HostDrafter, watched: Watched) -> None:
        self.author, self._watched = author, watched

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        given = [list(row) for row in tokens]
        drafts, wrong = self.author.propose(tokens, k), self._watched.log.wrong
        if tokens != given:
            wrong["inputs-stay"].append("propose changed the lists of units that it was given")
        longest = max(map(len, drafts), default=0)
        if longest > k:
            wrong["fits-the-budget"].append(f"{longest} units where k is {k}")
        return drafts


@contextmanager
def _unchanged(state: State, log: Log, where: str) -> Iterator[None]:
    """A block in which a drafter must not change the tensors of a state; changes are recorded and undone."""
    live, step = state.live, Snapshot(state.step)
    names = ("history", "pads", "emitted", "root", "done")
    before = {name: (getattr(state, name), getattr(state, name).clone()) for name in names}
    try:
        yield
    finally:
        for name, (tensor, then) in before.items():
            if getattr(state, name) is not tensor or not torch.equal(tensor, then):
                log.wrong["inputs-stay"].append(f"{where} changed state.{name}")
                tensor.copy_(then)
        state.live = live
        if step.restore():
            log.wrong["inputs-stay"].append(f"{where} changed the step that it was shown")


class Snapshot:
    """The tensors in a prompt, a draft, scores or a step, which can be compared with their present state."""

    def __init__(self, value: Any) -> None:
        self._copies = [(tensor, tensor.clone()) for tensor in tensors(value)]

    def restore(self) -> bool:
        """Undo all changes. Returns whether there were any."""
        changed = [(tensor, then) for tensor, then in self._copies if not torch.equal(tensor, then)]
        for tensor, then in changed:
            tensor.copy_(then)
        return bool(changed)


def tensors(value: Any) -> list[Tensor]:
    """The tensors in a prompt, a draft, scores or a step, however deep in containers; those with NaN are left out."""
    if isinstance(value, Tensor):
        return [value] if not value.isnan().any() else []
    if isinstance(value, dict):
        return [tensor for inner in value.values() for tensor in tensors(inner)]
    if isinstance(value, list | tuple):
        return [tensor for inner in value for tensor in tensors(inner)]
    if isinstance(value, Step | Draft | Scores | Verdict | Categorical | PointMass):
        return [tensor for f in fields(value) for tensor in tensors(getattr(value, f.name))]
    return []


def live_nodes(draft: Draft) -> Tensor:
    """Nodes of an unrooted draft that are valid, with all their ancestors: `[batch, node]`."""
    valid = torch.cat([torch.ones_like(draft.valid[:, :1]), draft.valid], 1)
    return ~(draft.index.ancestor & ~valid[:, None]).any(-1)[:, 1:]
