"""A watched rule: what is wrong with a verdict is recorded under the check that asks about it."""

import random
from typing import Any

import numpy
import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, Distribution, take_nodes
from mmspec.core.noise import Round
from mmspec.core.rules import Rule
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.testing.conformance.watch import Log, Snapshot
from mmspec.testing.lean import Around


class WatchedRule(Around):
    """Records the faults of a rule."""

    def __init__(self, rule: Rule, log: Log) -> None:
        super().__init__(rule)
        self.log = log

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        shown, generators = Snapshot([draft, scores]), _generators()
        verdict = self.rule.accept(draft, scores, round)
        self.log.count["verdicts"] += len(draft.units)
        if generators != _generators():
            self.log.wrong["global-generators-stay"].append("accept drew from a generator that is not its own")
        if shown.restore():
            self.log.wrong["draft-and-scores-stay"].append("accept changed the draft or the scores")
        wrong = _no_path(draft, scores.distribution, verdict)
        if wrong:
            self.log.wrong["verdicts-are-paths"].append(wrong)
        else:
            self._count(draft, scores, verdict)
        return verdict

    def _count(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Count drafts that were accepted whole, or in part, and emitted units of probability 0."""
        deepest = torch.where(draft.valid, draft.index.depth, 0).amax(1)
        drafted = deepest > 0
        self.log.count["drafted"] += int(drafted.sum())
        self.log.count["full"] += int((drafted & (verdict.length == deepest)).sum())
        self.log.count["some"] += int((verdict.length > 0).sum())
        if isinstance(scores.distribution, Categorical):
            self.log.count["impossible"] += int((_chances(draft, scores.distribution, verdict) <= 0).sum())


def _generators() -> tuple[Any, ...]:
    drawn = numpy.random.get_state(legacy=False)["state"]
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), drawn["key"].tobytes(), drawn["pos"]


def _no_path(draft: Draft, distribution: Distribution, verdict: Verdict) -> str:
    """Why a verdict is not a path of valid nodes from the root; "" if it is one."""
    rows = len(draft.units)
    wanted = {"length": (rows,), "unit": draft.units[:, 0].shape, "drawn": draft.units.shape}
    drawn = distribution.units(verdict.drawn) if verdict.drawn.dim() > 1 else verdict.drawn
    shapes = {"length": verdict.length.shape, "unit": verdict.unit.shape, "drawn": drawn.shape}
    for name, shape in shapes.items():
        if tuple(shape) != tuple(wanted[name]):
            return f"{name} has the shape {list(shape)}, not {list(wanted[name])}"
    if verdict.unit.dtype != draft.units.dtype:
        return f"unit is {verdict.unit.dtype} where units are {draft.units.dtype}"
    depth = verdict.path.shape[1]
    if verdict.path.shape[0] != rows or bool((verdict.length > depth).any()) or bool((verdict.length < 0).any()):
        return f"lengths up to {int(verdict.length.max())} with a path of shape {list(verdict.path.shape)}"
    slot = torch.arange(depth)
    inside = slot < verdict.length[:, None]
    if bool((verdict.path[~inside] != -1).any()) or bool((verdict.path[inside] < 1).any()):
        return "path is not node ids after the root, padded with -1"
    above = torch.nn.functional.pad(verdict.path, (1, 0))[:, :-1]
    parent = take_nodes(draft.index.parent.expand(rows, -1), verdict.path.clamp(min=0))
    if bool((parent[inside] != above[inside]).any()):
        return "path jumps: a node's parent is not the node before it"
    valid = take_nodes(draft.valid, verdict.path.clamp(min=0))
    return "path has a node that is not valid" if not bool(valid[inside].all()) else ""


def _chances(draft: Draft, distribution: Categorical, verdict: Verdict) -> Tensor:
    """The probability of every emitted unit at its place, 1 at places without one: `[batch, depth + 1]`."""
    nodes = torch.nn.functional.pad(verdict.path.clamp(min=0), (1, 0))  # the node that each emitted unit follows
    path = take_nodes(draft.units, nodes[:, 1:])
    slot = torch.arange(nodes.shape[1])
    emitted = torch.cat([path, verdict.unit[:, None]], 1)
    emitted = torch.where(slot == verdict.length[:, None], verdict.unit[:, None], emitted)
    chance = distribution.take(nodes).of(emitted)
    return torch.where(slot <= verdict.length[:, None], chance, 1.0)
