"""One training loop: AdamW, or Muon beside it, warm-up, cosine decay, checkpoints that survive an interrupt.

The batch of a step is a function of the step alone, so that a resumed run sees what an uninterrupted one would have
seen. Checkpoints are written whole or not at all: whenever the run stops, the last one loads.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.training.work import claimed, damaged, load_tensors, save_tensors

CHECKPOINT = "checkpoint.pt"
LOG = "log.jsonl"
_CHANGES_NOTHING = ("save_every", "log_every")


@dataclass(frozen=True)
class LoopOptions:
    """What the loop does; what it trains is the recipe's business.

    Attributes:
        steps: Optimiser steps in all.
        learning_rate: Peak, reached after `warmup` steps, decays to a twentieth of itself.
        warmup: Steps of linear warm-up.
        weight_decay: Of matrices; vectors (norms, biases) are not decayed.
        clip: Largest gradient norm.
        save_every: Steps between checkpoints.
        log_every: Steps between log lines.
        bf16: Run the forward pass under bfloat16 autocast; weights and optimiser stay float32.
        hidden: How names of parameters begin whose matrices Muon updates (orthogonal steps, as large as AdamW's:
            Liu et al., arXiv 2502.16982, § 2.2) and not AdamW; made for hidden layers, not for embeddings.
    """

    steps: int
    learning_rate: float = 1e-3
    warmup: int = 100
    weight_decay: float = 0.1
    clip: float = 1.0
    save_every: int = 100
    log_every: int = 20
    bf16: bool = True
    hidden: str | None = None


def schedule(step: int, options: LoopOptions) -> float:
    """Learning rate at `step`: linear warm-up, then a cosine down to 5 % of the peak."""
    if step < options.warmup:
        return options.learning_rate * (step + 1) / options.warmup
    progress = (step - options.warmup) / max(1, options.steps - options.warmup)
    return options.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))


def fit(
    model: nn.Module,
    batch_at: Callable[[int], Any],
    loss_of: Callable[[nn.Module, Any], Tensor],
    options: LoopOptions,
    folder: Path,
    say: Callable[[str], None] = print,
) -> None:
    """Train `model` in place, resuming from `folder/checkpoint.pt` where one is.

    Args:
        model: Float32 parameters, already on their device.
        batch_at: The batch of a step; must depend on the step alone.
        loss_of: Scalar loss of the model on a batch.
        options: The loop's numbers.
        folder: Holds `checkpoint.pt`, `log.jsonl` and, in `recipe.json`, `options`; made if missing.
        say: Where progress lines go.

    Raises:
        ValueError: `options.hidden` is the beginning of no matrix's name; the folder is another run's, or was begun
            with other options, or its checkpoint is damaged; the loss or its gradient is not finite any more.
        KeyboardInterrupt: After the last finished checkpoint; a later call goes on from it.
    """
    optimizers = _optimizers(model, options)
    recipe = {name: value for name, value in asdict(options).items() if name not in _CHANGES_NOTHING}
    with claimed(folder, recipe):
        _run(model, optimizers, batch_at, loss_of, options, folder, say)


def _run(
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    batch_at: Callable[[int], Any],
    loss_of: Callable[[nn.Module, Any], Tensor],
    options: LoopOptions,
    folder: Path,
    say: Callable[[str], None],
) -> None:
    first = _resume(model, optimizers, folder)
    if first:
        say(f"resuming at step {first} of {options.steps}")
    device = next(model.parameters()).device
    model.train()
    started = time.perf_counter()
    for step in range(first, options.steps):
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = schedule(step, options)
        with torch.autocast(device.type, torch.bfloat16, enabled=options.bf16):
            loss = loss_of(model, batch_at(step))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        if not torch.isfinite(loss.detach() + norm):  # before the weights take it in
            raise ValueError(_diverged(step, float(loss.detach()), float(norm), folder))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        done = step + 1
        if done % options.log_every == 0 or done == options.steps:
            record = {
                "step": done,
                "loss": round(float(loss.detach()), 4),
                "seconds": round(time.perf_counter() - started, 1),
            }
            with (folder / LOG).open("a") as log:
                log.write(json.dumps(record) + "\n")
            say(f"step {done}/{options.steps}  loss {record['loss']:.3f}  {record['seconds']:.0f} s")
        if done % options.save_every == 0 or done == options.steps:
            _save(model, optimizers, done, folder)
    model.eval()


def _optimizers(model: nn.Module, options: LoopOptions) -> list[torch.optim.Optimizer]:
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
    path = folder / CHECKPOINT
    if not path.exists():
        return 0
    saved: dict[str, Any] = load_tensors(path)
    with damaged(path):
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        return int(saved["step"])
