"""A training loop with AdamW (and Muon), warm-up, cosine decay, and checkpoints from which a run resumes.

The batch of a step is a function of the step alone, so that a resumed run sees the same batches as an uninterrupted
one. Checkpoints are written whole or not at all: whenever the run stops, the last one can be loaded. One is written
where the user stops the run, after so many steps, and after so many seconds, since a step may take minutes.
"""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mmspec.training.work import claimed, damaged, load_tensors, save_tensors

CHECKPOINT = "checkpoint.pt"
LOG = "log.jsonl"
_NOT_OF_THE_RECIPE = ("save_every", "log_every")  # options that may differ when a run resumes
SAVE_SECONDS = 300.0  # seconds of work that are lost at most where the process is killed, and one step's
FLOOR = 0.05  # the last learning rate, as a share of the peak


@dataclass(frozen=True)
class LoopOptions:
    steps: int  # the number of optimiser steps
    # The peak of the learning rate, reached after `warmup` steps; it decays to 5 % of the peak
    learning_rate: float = 1e-3
    warmup: int = 100  # steps of linear warm-up from 0
    weight_decay: float = 0.1  # the weight decay of matrices; vectors (norms, biases) have none
    clip: float = 1.0  # the largest gradient norm
    save_every: int = 100  # steps between checkpoints
    log_every: int = 20  # steps between log lines
    bf16: bool = True  # whether the forward pass runs under bfloat16 autocast; weights and optimiser stay float32
    # The prefix of the parameters whose matrices are updated by Muon and not by AdamW (orthogonal steps of AdamW's
    # size: Liu et al., arXiv 2502.16982, § 2.2). Muon is for hidden layers, not for embeddings.
    hidden: str | None = None
    batches: int = 1  # of a step, one after another: the memory of one, and the mean of their gradients


def scheduled(optimizer: Optimizer, options: LoopOptions, done: int = 0) -> LRScheduler:
    """The schedule of the learning rate of an optimiser as it was after `done` steps: linear warm-up, then a cosine
    down to `FLOOR` of the peak.
    """
    from transformers.optimization import get_cosine_with_min_lr_schedule_with_warmup

    schedule: LRScheduler = get_cosine_with_min_lr_schedule_with_warmup(
        optimizer, options.warmup, options.steps, last_epoch=done - 1, min_lr_rate=FLOOR
    )
    return schedule


WARM, TIMED = 1, 2  # steps of a run that are not timed, and those after them from which its time is estimated


def fit(
    model: nn.Module,
    batch_at: Callable[[int], Any],
    loss_of: Callable[[nn.Module, Any], Tensor],
    options: LoopOptions,
    folder: Path,
    say: Callable[[str], None] = print,
) -> None:
    """Train `model` in place, resuming from `folder/checkpoint.pt` if it exists.

    The batches of a step depend on the step alone: `batch_at` is given the number of a batch. The model has float32
    parameters, already on its device. `folder` is made if missing; it holds `checkpoint.pt`, `log.jsonl` and, in
    `recipe.json`, the options.
    """
    optimizers = _optimizers(model, options)
    recipe = {name: value for name, value in asdict(options).items() if name not in _NOT_OF_THE_RECIPE}
    with claimed(folder, recipe):
        first = _resume(model, optimizers, folder)
        if first:
            say(f"resuming at step {first} of {options.steps}")
        schedules = [scheduled(optimizer, options, first) for optimizer in optimizers]
        model.train()
        started = began = time.perf_counter()
        saved = began
        whole: int | None = first  # the steps that are in the weights; None while they change
        try:
            for step in range(first, options.steps):
                if step == first + WARM:
                    began = time.perf_counter()
                batches = range(step * options.batches, (step + 1) * options.batches)
                loss, norm = _gradient(model, map(batch_at, batches), loss_of, options)
                if not torch.isfinite(loss + norm):  # checked before the weights are changed
                    raise ValueError(_diverged(step, float(loss), float(norm), folder))
                whole = None
                for optimizer, schedule in zip(optimizers, schedules, strict=True):
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                    schedule.step()
                whole = done = step + 1
                if done == first + WARM + TIMED < options.steps:
                    left = (time.perf_counter() - began) / TIMED * (options.steps - done) / 60
                    say(f"the {options.steps - done} steps that are left take about {left:.1f} minutes")
                if done % options.log_every == 0 or done == options.steps:
                    _log(done, options.steps, float(loss), time.perf_counter() - started, folder, say)
                now = time.perf_counter()
                if done % options.save_every == 0 or done == options.steps or now - saved >= SAVE_SECONDS:
                    _save(model, optimizers, done, folder)
                    saved = now
        except KeyboardInterrupt:
            if whole is not None and whole > first:
                _save(model, optimizers, whole, folder)
            raise
        model.eval()


def _gradient(
    model: nn.Module, batches: Iterable[Any], loss_of: Callable[[nn.Module, Any], Tensor], options: LoopOptions
) -> tuple[Tensor, Tensor]:
    """A step's loss, and the norm of its gradient, which is left in the parameters."""
    device = next(model.parameters()).device
    loss = torch.zeros((), device=device)
    for batch in batches:
        with torch.autocast(device.type, torch.bfloat16, enabled=options.bf16):
            part = loss_of(model, batch) / options.batches
        part.backward()
        loss += part.detach()
    return loss, nn.utils.clip_grad_norm_(model.parameters(), options.clip)


def _log(done: int, steps: int, loss: float, seconds: float, folder: Path, say: Callable[[str], None]) -> None:
    record = {"step": done, "loss": round(loss, 4), "seconds": round(seconds, 1)}
    with (folder / LOG).open("a") as log:
        log.write(json.dumps(record) + "\n")
    say(f"step {done}/{steps}  loss {loss:.3f}  {seconds:.0f} s")


def _optimizers(model: nn.Module, options: LoopOptions) -> list[Optimizer]:
    """AdamW, and Muon if `options.hidden` is set."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, p in model.named_parameters():
        if p.requires_grad:
            hidden = options.hidden is not None and name.startswith(options.hidden) and p.dim() == 2
            (matrices if hidden else others).append(p)
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in others if p.dim() > 1], "weight_decay": options.weight_decay},
            {"params": [p for p in others if p.dim() <= 1], "weight_decay": 0.0},
        ],
        lr=options.learning_rate,
        betas=(0.9, 0.95),
        fused=True,
    )
    if options.hidden is None:
        return [adamw]
    if not matrices:
        raise ValueError(f"no matrix that is trained has a name that begins with {options.hidden!r}")
    muon = torch.optim.Muon(
        matrices, lr=options.learning_rate, weight_decay=options.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return [adamw, muon]


def _diverged(step: int, loss: float, norm: float, folder: Path) -> str:
    kept = f"{folder / CHECKPOINT} is from before" if (folder / CHECKPOINT).is_file() else "no checkpoint was written"
    return (
        f"training stopped at step {step + 1}: its loss is {loss:g} and the norm of its gradient {norm:g}; {kept}. "
        "The same recipe stops there again; a smaller learning rate or other data may not"
    )


def _save(model: nn.Module, optimizers: list[torch.optim.Optimizer], step: int, folder: Path) -> None:
    states = [optimizer.state_dict() for optimizer in optimizers]
    save_tensors(folder / CHECKPOINT, {"model": model.state_dict(), "optimizers": states, "step": step})


def _resume(model: nn.Module, optimizers: list[torch.optim.Optimizer], folder: Path) -> int:
    """Load the checkpoint, if there is one. Returns the number of steps that were done."""
    path = folder / CHECKPOINT
    if not path.exists():
        return 0
    saved: dict[str, Any] = load_tensors(path)
    with damaged(path):
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        return int(saved["step"])
