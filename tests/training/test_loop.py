"""The loop of training: its schedule, its optimisers, and that both resume."""

import contextlib
import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.training import loop
from mmspec.training.loop import LoopOptions, fit, scheduled


def test_the_schedule() -> None:
    options = LoopOptions(steps=100, learning_rate=2.0, warmup=10)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=options.learning_rate)
    schedule, rates = scheduled(optimizer, options), list[float]()
    for _ in range(101):
        rates += schedule.get_last_lr()
        optimizer.step()
        schedule.step()
    assert rates[:10] == pytest.approx([0.2 * i for i in range(10)])
    assert rates[10] == max(rates) == 2.0 and rates[100] == pytest.approx(0.1) == min(rates[1:])
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert rates[55] == pytest.approx(2.0 * (0.05 + 0.95 / 2))  # half-way down the cosine
    assert scheduled(optimizer, options, done=37).get_last_lr() == pytest.approx([rates[37]])


def test_the_loop_learns_and_clips(tmp_path: Path) -> None:
    """Least squares: the loop finds the line; a batch depends on the step alone."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)

    def batch_at(step: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(16, 3, generator=torch.Generator().manual_seed(step))
        return x, x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 3

    def loss_of(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0]) - batch[1]).square().mean()

    options = LoopOptions(300, 0.1, warmup=10, weight_decay=0.0, save_every=300, log_every=50, bf16=False)
    said = list[str]()
    fit(model, batch_at, loss_of, options, tmp_path, say=said.append)
    assert said[0].startswith("the 297 steps that are left take about ")
    assert loss_of(model, batch_at(999)).item() < 0.01 and not model.training


def test_a_step_of_several_batches(tmp_path: Path) -> None:
    """As one of all their rows; `batch_at` counts batches."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 4, 3, generator=g), torch.randn(12, 4, 2, generator=g)
    trained = []
    for batches in (1, 3):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        asked: list[int] = []

        def batch_at(number: int, batches: int = batches, asked: list[int] = asked) -> tuple[Tensor, Tensor]:
            asked.append(number)
            these = slice(3 * number, 3 * number + 3) if batches == 1 else slice(number, number + 1)
            return x[these].flatten(0, 1), y[these].flatten(0, 1)

        def loss_of(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
            return (model(batch[0]) - batch[1]).square().mean()

        options = LoopOptions(4, 1e-2, warmup=1, bf16=False, log_every=1, batches=batches)
        fit(model, batch_at, loss_of, options, tmp_path / str(batches), str)
        trained.append(model.weight.detach().clone())
        assert asked == list(range(4 * batches))
    torch.testing.assert_close(*trained)
    first, second = ((tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("1", "3"))
    assert [json.loads(line)["loss"] for line in first] == [json.loads(line)["loss"] for line in second]


def test_muon_takes_the_matrices_it_is_told_to(tmp_path: Path) -> None:
    """Its steps are orthogonal; AdamW's first one changes all numbers as much."""
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"blocks": torch.nn.Linear(6, 4), "output": torch.nn.Linear(4, 6)})
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    def loss_of(model: Any, x: Tensor) -> Tensor:
        return (model["output"](model["blocks"](x)) - x).square().mean()

    options = LoopOptions(1, 0.1, warmup=0, weight_decay=0.0, bf16=False, hidden="blocks.")
    batch = torch.randn(64, 6)
    with pytest.raises(ValueError, match=r"begins with 'block\.'"):
        fit(model, lambda step: batch, loss_of, replace(options, hidden="block."), tmp_path)
    fit(model, lambda step: batch, loss_of, options, tmp_path, say=lambda line: None)
    steps = {name: p.detach() - before[name] for name, p in model.named_parameters()}
    sizes = torch.linalg.svdvals(steps["blocks.weight"]) / (0.1 * 0.2 * 6**0.5)
    assert sizes.min() > 0.6 and sizes.max() < 1.3
    for name in ("blocks.bias", "output.weight", "output.bias"):
        torch.testing.assert_close(steps[name].abs(), torch.full_like(steps[name], 0.1), rtol=1e-3, atol=0)


@pytest.mark.parametrize("inside", ["a pass", "an update"])
def test_an_interrupt_keeps_the_steps_that_were_done(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not weights of which some are updated; and the run ends as one without an interrupt."""

    def run(folder: Path, last: int) -> Tensor:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 3)
        done = itertools.count()

        def loss_of(model: Any, step: int) -> Tensor:
            if step == last and inside == "a pass":
                raise KeyboardInterrupt
            return model(torch.randn(8, 3, generator=torch.Generator().manual_seed(step))).square().mean()

        def step(self: Any, *rest: Any) -> Any:
            updated = whole_step(self, *rest)
            if next(done) == last and inside == "an update":
                raise KeyboardInterrupt
            return updated

        options = LoopOptions(6, 0.1, warmup=0, bf16=False)
        with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
            patched.setattr(torch.optim.AdamW, "step", step)
            fit(model, lambda step: step, loss_of, options, folder, say=lambda line: None)
        return model.weight.detach().clone()

    whole_step = torch.optim.AdamW.step
    whole, stopped = run(tmp_path / "whole", last=9), run(tmp_path / "stopped", last=4)
    kept = tmp_path / "stopped" / "checkpoint.pt"
    if inside == "a pass":
        assert torch.load(kept, weights_only=True)["step"] == 4
    else:
        assert not kept.exists()
    assert not torch.equal(whole, stopped) and torch.equal(whole, run(tmp_path / "stopped", last=9))
    run(tmp_path / "at once", last=0)
    assert not (tmp_path / "at once" / "checkpoint.pt").exists()


def test_slow_steps_are_kept_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(step=100.0)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    kept = list[int]()
    monkeypatch.setattr(loop, "_save", lambda model, optimizers, step, folder: kept.append(step))
    options = LoopOptions(9, 0.1, warmup=0, save_every=100, log_every=100, bf16=False)
    fit(torch.nn.Linear(1, 1), torch.tensor, lambda model, _: model(torch.ones(1)).sum(), options, tmp_path, str)
    assert len(kept) > 3 and kept[-1] == 9


def test_both_optimisers_resume(tmp_path: Path) -> None:
    def run(folder: Path, last: int) -> Tensor:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))

        def loss_of(model: Any, step: int) -> Tensor:
            if step == last:
                raise KeyboardInterrupt
            return model(torch.randn(8, 3, generator=torch.Generator().manual_seed(step))).square().mean()

        options = LoopOptions(4, 0.1, warmup=0, save_every=2, bf16=False, hidden="0.")
        with contextlib.suppress(KeyboardInterrupt):
            fit(model, lambda step: step, loss_of, options, folder, say=lambda line: None)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    whole, stopped = run(tmp_path / "whole", last=9), run(tmp_path / "stopped", last=3)
    assert not torch.equal(whole, stopped)
    assert torch.equal(whole, run(tmp_path / "stopped", last=9))
