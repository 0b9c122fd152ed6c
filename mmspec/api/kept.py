"""The scores that `output_scores` and `output_logits` ask for: one tensor a step, as transformers returns them."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from mmspec.core.state import State


class Kept:
    """The target's scores of every emitted token.

    A row that has ended is certain of its padding: its scores are 0 for the padding token and -inf for all others, so
    that padding adds nothing to a sum of transition scores. (transformers keeps there what the model says to padding.)

    Args:
        which: `logits`: after the processors (`output_scores`); `unprocessed`: before them (`output_logits`).
        rows: Rows of the batch.
        pad: The padding token.
    """

    def __init__(self, which: Literal["logits", "unprocessed"], rows: int, pad: int) -> None:
        self._which = which
        self._pad = pad
        self._rows: list[list[Tensor]] = [[] for _ in range(rows)]

    def step(self, state: State) -> None:
        """Keep the scores of what the last round emitted: the root's, then those of the accepted path."""
        assert state.step is not None
        scores: Tensor | None = getattr(state.step.scores, self._which)
        if scores is None:
            raise ValueError("this target yields distributions, not logits: there are no scores to return")
        fresh = [max(0, now - len(kept)) for now, kept in zip(state.host_emitted, self._rows, strict=True)]
        where = [(row, slot) for row, count in enumerate(fresh) for slot in range(count)]
        rows, slots = torch.tensor(where, dtype=torch.int64, device=scores.device).reshape(-1, 2).T
        nodes = torch.nn.functional.pad(state.step.verdict.path.clamp(min=0), (1, 0))[rows, slots]
        picked = scores[rows, nodes]  # a copy of what is kept: the rest of the round can go
        for kept, new in zip(self._rows, picked.split(fresh), strict=True):
            kept.extend(new)

    def at(self, step: int, lengths: Sequence[int]) -> Tensor:
        """Scores of new token `step`, from 0, of rows that have `lengths` tokens: `[batch, vocab]`."""
        some = next(kept[0] for kept in self._rows if kept)
        ended = torch.full_like(some, -torch.inf)
        ended[self._pad] = 0
        chosen = zip(self._rows, lengths, strict=True)
        return torch.stack([kept[step] if step < length else ended for kept, length in chosen])

    def all(self, lengths: Sequence[int]) -> tuple[Tensor, ...]:
        """One tensor a step, up to the longest row."""
        return tuple(self.at(step, lengths) for step in range(max(lengths)))
