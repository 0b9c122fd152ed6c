"""The network's predictions at drafted states: one entry per denoising step, valid row by row.

A row of an entry is *valid* while its drafted state may still become the row's own: the network's output for it is then
known already. Rows become invalid one by one, and the next network call is made for the invalid ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmspec_continuous.denoising.denoiser_call import UnsupportedCall, leaves_of, map_leaves
from mmspec_continuous.denoising.drafting import DraftedStep


@dataclass
class Prediction:
    """The drafted states of one step, and what the network predicts there."""

    state: Tensor  # `[batch, *unit]`
    mean: Tensor  # mean of the Gaussian that the state was drawn from, `[batch, *unit]`
    sigma: float  # its standard deviation
    output: Any  # what the denoiser returned: a nest of `[copies * batch, …]`
    valid: Tensor  # `[batch]` bool


class Predictions:
    """Predictions for a batch, by index of the denoising step."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.at: dict[int, Prediction] = {}

    def missing(self, index: int, device: torch.device) -> Tensor:
        """Rows without a valid prediction at step `index`: `[m]` int64."""
        known = self.at.get(index)
        return torch.arange(self.batch, device=device) if known is None else (~known.valid).nonzero().flatten()

    def put(self, index: int, rows: Tensor, copied: Tensor, new: Prediction) -> None:
        """Enter the prediction of the rows `[m]` of the batch, which are the rows `copied [copies * m]` of the
        denoiser's output.
        """
        if len(rows) == self.batch:
            self.at[index] = new
            return
        old = self.at.get(index)
        states = None if old is None else (old.state, old.mean, old.valid)
        state, mean, valid = _merged(states, (new.state, new.mean, new.valid), rows, self.batch)
        output = _merged(old and old.output, new.output, copied, len(copied) // len(rows) * self.batch)
        self.at[index] = Prediction(state, mean, new.sigma, output, valid)

    def advance(self, index: int, same: Tensor) -> None:
        """All rows are at step `index`; only the rows of `same [batch]` are at the drafted state and stay valid."""
        self.at = {step: known for step, known in self.at.items() if step >= index}
        for known in self.at.values():
            known.valid = known.valid & same


def by_step(draft: Sequence[DraftedStep], output: Any, each: int) -> list[Prediction]:
    """The output of one network call, a nest of `[step * each, …]`, divided into its steps.

    Raises:
        UnsupportedCall: The output has another number of rows.
    """
    valid = torch.ones(len(draft[0].state), dtype=torch.bool, device=draft[0].state.device)

    def rows_of(value: Any, step: int) -> Any:
        if isinstance(value, Tensor) and len(value) != each * len(draft):
            raise UnsupportedCall(f"the denoiser returned {len(value)} rows for {each * len(draft)}")
        return value[step * each : (step + 1) * each] if isinstance(value, Tensor) else value

    outputs = [map_leaves(output, partial(rows_of, step=step)) for step in range(len(draft))]
    return [Prediction(d.state, d.mean, d.sigma, o, valid) for d, o in zip(draft, outputs, strict=True)]


def _merged(old: Any, new: Any, rows: Tensor, size: int) -> Any:
    """The nest `old` with `rows` of its tensors replaced by `new`'s; where it is None, zeros elsewhere."""
    before = iter(leaves_of(old)) if old is not None else None

    def entered(part: Any) -> Any:
        known = None if before is None else next(before)
        if not isinstance(part, Tensor):
            return part
        return (part.new_zeros(size, *part.shape[1:]) if known is None else known).index_copy(0, rows, part)

    return map_leaves(new, entered)
