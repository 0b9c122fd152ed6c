"""The scores that `output_scores` and `output_logits` ask for: one tensor per step, as transformers returns them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.core.state import State
from mmspec.core.transfer import on_device


class StepScores:
    """The target's scores of every emitted token.

    After its end a row has score 0 for the padding token and -inf for all others, so that padding adds nothing to a sum
    of transition scores. (transformers returns there what the model predicts after padding.)

    Args:
        processed: Scores after the logits processors (`output_scores`), or before them (`output_logits`).
        rows: Rows of the batch.
        pad: The padding token.
    """

    def __init__(self, processed: bool, rows: int, pad: int) -> None:
        self._processed = processed
        self._pad = pad
        self._rows: list[list[Tensor]] = [[] for _ in range(rows)]

    def step(self, state: State) -> None:
        """Add the scores of what the last round emitted: those at the root, then those along the accepted path.

        Raises:
            ValueError: The target yields no logits.
        """
        assert state.step is not None
        scores = state.step.scores.logits if self._processed else state.step.scores.unprocessed
        if scores is None:
            raise ValueError("this target yields distributions, not logits: there are no scores to return")
        counts = [max(0, now - len(row)) for now, row in zip(state.host_emitted, self._rows, strict=True)]
        places = [(row, slot) for row, count in enumerate(counts) for slot in range(count)]
        rows, slots = on_device(places, scores.device, torch.int64).reshape(-1, 2).T
        nodes = torch.nn.functional.pad(state.step.verdict.path.clamp(min=0), (1, 0))[rows, slots]
        emitted = scores[rows, nodes]  # a copy, so that the round's scores can be freed
        for row, new in zip(self._rows, emitted.split(counts), strict=True):
            row.extend(new)

    def at(self, step: int, lengths: Sequence[int]) -> Tensor:
        """Scores of new token `step`, counted from 0, in rows of `lengths` new tokens: `[batch, vocab]`."""
        example = next(row[0] for row in self._rows if row)
        ended = torch.full_like(example, -torch.inf)
        ended[self._pad] = 0
        rows = zip(self._rows, lengths, strict=True)
        return torch.stack([row[step] if step < length else ended for row, length in rows])

    def all(self, lengths: Sequence[int]) -> tuple[Tensor, ...]:
        """Scores of all steps up to the longest row, `[batch, vocab]` each."""
        return tuple(self.at(step, lengths) for step in range(max(lengths)))
