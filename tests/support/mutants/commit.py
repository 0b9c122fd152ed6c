"""Bugs of bookkeeping: what is emitted, committed to a cache, or shown to the drafter after a round."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.growing import Scratch
from mmspec.core.live import Live
from mmspec.core.rules import rule
from mmspec.core.state import State
from mmspec.core.types import Draft, Step, Verdict
from mmspec.testing.toys.cache import UnitsCache
from mmspec.testing.toys.history import HistoryTarget
from tests.support.mutants.mutant import Mutant, replacing


def _no_bonus(original: Callable) -> Callable:
    def walk_where(draft: Draft, match: Tensor, drawn: Tensor, units: Tensor | None = None) -> Verdict:
        verdict = original(draft, match, drawn, units)
        if draft.nodes == 1:
            return verdict
        most = torch.where(draft.valid, draft.index.depth, 0).amax(1)
        full = (verdict.length == most) & (most > 0)
        leaf = verdict.path.gather(1, (verdict.length - 1).clamp(min=0)[:, None]).clamp(min=0)
        unit = torch.where(full, take_nodes(draft.units, leaf)[:, 0], verdict.unit)
        return replace(verdict, length=verdict.length - full.long(), unit=unit)

    return walk_where


def _ends_at_the_last(original: Callable) -> Callable:
    def appended(self: Live, *args: Any) -> tuple[Live, Tensor]:
        live, count = original(replace(self, ends=self.ends[:0]), *args)
        ended = torch.isin(live.root, self.ends) & (count > 0)
        return replace(live, ends=self.ends, done=live.done | ended), count

    return appended


def _one_short(original: Callable) -> Callable:
    def commit(self: HistoryTarget, cache: UnitsCache, path: Tensor, count: Tensor) -> None:
        original(self, cache, path, count - (count > 1).long())

    return commit


def _by_slot(original: Callable) -> Callable:
    def commit(self: HistoryTarget, cache: UnitsCache, path: Tensor, count: Tensor) -> None:
        original(self, cache, torch.arange(1, path.shape[1] + 1).expand_as(path), count)

    return commit


def _every_unit_read(original: Callable) -> Callable:
    def follow(self: Scratch, step: Step) -> tuple[Tensor, Tensor]:
        path = torch.arange(1, self.fed.nodes).expand(len(step.count), -1)
        return path, torch.where(step.count > 0, self.fed.nodes, 0)

    return follow


def _not_after_empty(original: Callable) -> Callable:
    def observe(self: DraftModel, state: State, step: Step) -> None:
        if step.draft.nodes > 1:
            original(self, state, step)

    return observe


MUTANTS = (
    Mutant(
        "bonus-dropped-on-full-accept",
        "a fully accepted draft of k units emits k, not k + 1",
        "loops that stop at the draft's end; speculative sampling (arXiv 2211.17192) emits one more unit",
        replacing(rule, "walk_where", _no_bonus),
    ),
    Mutant(
        "end-inside-the-accepted-path-ignored",
        "only a round's last unit is compared with the end of sequence",
        "several methods in Spec-Bench (arXiv 2401.07851) emit units past the end of sequence",
        replacing(Live, "appended", _ends_at_the_last),
    ),
    Mutant(
        "commit-one-short",
        "the last accepted node is not kept by the target",
        "an off-by-one when the key-value cache is cropped after a round",
        replacing(HistoryTarget, "commit", _one_short),
    ),
    Mutant(
        "path-not-gathered",
        "commit keeps the first slots of the tree instead of the accepted path's",
        "tree verification without compaction of the cache; SpecInfer (arXiv 2305.09781) compacts it",
        replacing(HistoryTarget, "commit", _by_slot),
    ),
    Mutant(
        "target-position-by-index",
        "the target sees a node at length + index instead of length + depth",
        "tree verification with position ids by index; SpecInfer (arXiv 2305.09781) counts depth",
        replacing(
            HistoryTarget,
            "position",
            lambda original: lambda self, length, draft: length[:, None] + torch.arange(draft.nodes),
        ),
    ),
    Mutant(
        "observe-skipped-after-an-empty-round",
        "`observe` is not called after rounds without a draft, and the drafter continues from a stale state",
        "TensorRT-LLM issue 16888, vLLM issue 52942",
        replacing(DraftModel, "observe", _not_after_empty),
    ),
    Mutant(
        "rejected-units-stay-in-the-draft-cache",
        "the draft model commits every unit that it read, so that it drafts after units that were refused",
        "draft caches that are cropped with the wrong sign, or not at all",
        replacing(Scratch, "follow", _every_unit_read),
    ),
)
