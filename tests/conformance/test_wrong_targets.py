"""Targets with one fault each: the check that is meant for it fails, and no other."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.types import Draft, TargetOutput
from mmspec.testing import Example
from mmspec.testing.conformance.benches import gaussian, grid, history
from mmspec.testing.toys.cache import UnitsCache
from mmspec.testing.toys.history import HistoryTarget


class Right(HistoryTarget):
    @classmethod
    def example(cls) -> Example:
        bench = history()
        return Example(target=cls.random(3, seed=3), prompt=bench.prompt, again=bench.again)


class CommitsOneShort(Right):
    def commit(self, cache: UnitsCache, path: Tensor, count: Tensor) -> None:
        super().commit(cache, path, count - (count > 1).long())


class CommitsBySlot(Right):
    def commit(self, cache: UnitsCache, path: Tensor, count: Tensor) -> None:
        super().commit(cache, torch.arange(1, path.shape[1] + 1).expand_as(path), count)


class PositionByIndex(Right):
    def position(self, length: Tensor, draft: Draft) -> Tensor:
        return length[:, None] + torch.arange(draft.nodes)


class KeepsDrafts(Right):
    """Scores drift with every pass."""

    passes = 0

    def verify(self, cache: UnitsCache, draft: Draft, first: int = 0) -> TargetOutput:
        output = super().verify(cache, draft, first)
        kept = getattr(cache, "drifted", 0)
        cache.drifted = kept + (draft.nodes != 6)  # type: ignore[attr-defined]
        return replace(output, logits=output.logits + kept * (draft.nodes == 6) * torch.arange(3))


class WholeDraftsOnly(Right):
    def verify(self, cache: UnitsCache, draft: Draft, first: int = 0) -> TargetOutput:
        logits = super().verify(cache, draft, 0).logits
        assert logits is not None
        return TargetOutput(logits=logits[:, : draft.nodes - first])


class MixesRows(Right):
    """A batch is scored with the mean of its rows added; a reference of the same batch does not see it."""

    def _mixed(self, logits: Tensor) -> Tensor:
        return logits + logits.mean((0, 1), keepdim=True)

    def start(self, inputs: Any, limit: int, width: int) -> Any:
        started = super().start(inputs, limit, width)
        return replace(started, output=TargetOutput(logits=self._mixed(started.output.logits)))


class ForgetsToTruncate(Right):
    def truncate(self, cache: UnitsCache, length: Tensor) -> None:
        pass


FAULTS = {
    CommitsOneShort: {"commits-are-remembered"},
    CommitsBySlot: {"commits-are-remembered"},
    KeepsDrafts: {"verify-keeps-nothing"},
    WholeDraftsOnly: {"drafts-grow-in-pieces"},
    ForgetsToTruncate: {"truncation-goes-back"},
}


@pytest.mark.parametrize("target", FAULTS)
def test_a_fault_fails_its_own_check_and_no_other(target: type, checked: Callable, failed: Callable) -> None:
    found = checked(target, "target")
    assert failed(found) == FAULTS[target], {name: found[name] for name in failed(found)}


def test_positions_by_index_and_rows_that_mix_are_seen(checked: Callable, failed: Callable) -> None:
    assert "trees-are-exact" in failed(checked(PositionByIndex, "target"))
    assert "chains-are-exact" not in failed(checked(PositionByIndex, "target"))
    assert "rows-are-independent" in failed(checked(MixesRows, "target"))


def test_a_right_target_passes(checked: Callable, failed: Callable) -> None:
    found = checked(Right, "target")
    assert {name for name, outcome in found.items() if outcome.status != "pass"} == {"import-is-cheap"}, found


class Codes:
    """A target without units in its prompt, under guidance: compared with one-unit passes."""

    offers = grid().target.offers

    @staticmethod
    def example() -> Example:
        return Example(target=grid().target, prompt=grid().prompt)


class Tokens:
    """A continuous one."""

    offers = gaussian().target.offers

    @staticmethod
    def example() -> Example:
        return Example(target=gaussian().target, prompt=gaussian().prompt)


@pytest.mark.parametrize("target", [Codes, Tokens])
def test_targets_whose_prompts_are_no_units(target: Any, checked: Callable, failed: Callable) -> None:
    found = checked(target, "target")
    assert not failed(found), {name: found[name] for name in failed(found)}
    assert found["commits-are-remembered"].number.startswith("max |Δ|")


class NoExample:
    offers = frozenset({"discrete"})


def test_without_an_example_a_target_is_skipped_with_what_to_add(checked: Callable, failed: Callable) -> None:
    found = checked(NoExample, "target")
    assert found["manifest-agrees"].status == "pass"
    assert found["chains-are-exact"].status == "skip" and "an `example`" in found["chains-are-exact"].reason
    assert not failed(found)
