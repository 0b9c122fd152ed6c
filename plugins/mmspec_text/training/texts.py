"""Texts that a drafter is trained on, and the batches cut from them.

The target's own text is what a drafter meets when it is used, and text of other authors keeps it from learning the
target's habits alone: a recipe mixes streams by their shares.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

GIVEN, CONTINUED = 64, 448
"""Units of a prompt that the target continues, and most units that it adds."""
AT_ONCE = 128
"""Prompts that are continued in one batch."""


@dataclass(frozen=True)
class Stream:
    """A text as one row of units.

    Attributes:
        units: `[unit]` int64.
        share: The expected share of sequences cut from it, among those of all streams.
    """

    units: Tensor
    share: float


@dataclass(frozen=True)
class Texts:
    """Streams, and the size of a batch.

    Attributes:
        streams: The streams; each is longer than a sequence.
        rows: Sequences of a batch.
        length: Units of a sequence.
        seed: Of the places that are cut.
        device: The device of batches.
    """

    streams: Sequence[Stream]
    rows: int
    length: int
    seed: int
    device: Any = "cpu"

    def batch_at(self, step: int) -> Tensor:
        """The batch of a step, `[sequence, unit]`: a function of the step alone."""
        g = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        shares = torch.tensor([stream.share for stream in self.streams])
        cut = []
        for which in torch.multinomial(shares, self.rows, replacement=True, generator=g).tolist():
            units = self.streams[which].units
            start = int(torch.randint(len(units) - self.length + 1, (), generator=g))
            cut.append(units[start : start + self.length])
        return torch.stack(cut).to(self.device)


@torch.no_grad()
def continued(model: Any, prompts: Tensor, new: int, temperature: float, seed: int) -> Tensor:
    """Prompts and what the target says next, as one stream of units.

    Args:
        model: The target.
        prompts: `[row, unit]` int64, without padding.
        new: Most units of a continuation; it ends at the end of a text.
        temperature: Of the target's sampling; 0: greedy.
        seed: Of torch's generator, which is left as it was.
    """
    how: dict[str, Any] = {"do_sample": bool(temperature)}
    how |= {"temperature": temperature, "top_k": 0} if temperature else {}
    how |= {"max_new_tokens": new, "pad_token_id": _pad(model)}
    ends, rows = _ends(model), []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for some in prompts.to(model.device).split(AT_ONCE):
            for row in model.generate(input_ids=some, attention_mask=torch.ones_like(some), **how).cpu():
                stops = torch.isin(row[prompts.shape[1] :], ends).nonzero()[:, 0]
                rows.append(row if not len(stops) else row[: prompts.shape[1] + int(stops[0]) + 1])
    return torch.cat(rows)


def _ends(model: Any) -> Tensor:
    """The ids that end a text."""
    ends = model.generation_config.eos_token_id
    return torch.tensor(ends if isinstance(ends, list) else [] if ends is None else [ends], dtype=torch.int64)


def _pad(model: Any) -> int:
    pad = model.generation_config.pad_token_id
    ends = _ends(model)
    return int(pad) if pad is not None else int(ends[0]) if len(ends) else 0
