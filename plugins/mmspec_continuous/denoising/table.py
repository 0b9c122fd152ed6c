"""What the network has said about states that are not reached yet: by step, and row by row.

A row of a level is *held* while its drafted state may still become the row's own: its output is then there already.
Rows lose theirs one by one, and get new ones when the network is next called for them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec_continuous.denoising.asked import leaves


@dataclass
class Level:
    """The drafted states of one step.

    Attributes:
        state: `[batch, *unit]`.
        mean: What it was drawn around, `[batch, *unit]`.
        sigma: With which spread.
        output: What the denoiser returned for it: a nest of `[copies * batch, …]`.
        held: `[batch]` bool.
    """

    state: Tensor
    mean: Tensor
    sigma: float
    output: Any
    held: Tensor


class Table:
    """Levels by index of the step; `batch` rows."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.levels: dict[int, Level] = {}

    def lacking(self, index: int, device: torch.device) -> Tensor:
        """Rows that the network must be called for at a step: `[m]`."""
        level = self.levels.get(index)
        return torch.arange(self.batch, device=device) if level is None else (~level.held).nonzero().flatten()

    def put(self, index: int, rows: Tensor, copied: Tensor, new: Level) -> None:
        """Enter some rows of a level.

        Args:
            index: The step.
            rows: `[m]`, where in the batch.
            copied: `[copies * m]`, where in the denoiser's output.
            new: Of these rows only.
        """
        if len(rows) == self.batch:
            self.levels[index] = new
            return
        old = self.levels.get(index)
        size = len(copied) // len(rows) * self.batch
        before = iter(_listed(old.output)) if old is not None else None

        def merged(part: Any) -> Any:
            known = None if before is None else next(before)
            return _entered(known, part, copied, size) if isinstance(part, Tensor) else part

        output = leaves(new.output, merged)
        state, mean, held = (
            _entered(None if old is None else getattr(old, name), getattr(new, name), rows, self.batch)
            for name in ("state", "mean", "held")
        )
        self.levels[index] = Level(state, mean, new.sigma, output, held)

    def reach(self, index: int, same: Tensor) -> None:
        """The rows are at step `index`, those of `same [batch]` at the drafted state; the others hold nothing more."""
        self.levels = {at: level for at, level in self.levels.items() if at >= index}
        for level in self.levels.values():
            level.held = level.held & same


def _entered(known: Tensor | None, part: Tensor, at: Tensor, size: int) -> Tensor:
    whole = part.new_zeros(size, *part.shape[1:]) if known is None else known
    return whole.index_copy(0, at, part)


def _listed(nest: Any) -> list[Any]:
    found: list[Any] = []
    leaves(nest, found.append)
    return found
