"""Rows of one prompt: it is read once, and what is kept of it is copied to each of them.

transformers' `num_return_sequences=n` repeats every prompt n times before anything runs, so that a prefill of the rows
would do the same work n times. The copies are a row's own: rows do not share memory, because they go on with texts of
their own. What is kept is to the bit what a batch of the distinct prompts keeps. It equals a prefill of all rows up to
rounding, which may depend on how many rows a pass has, as it does in every batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.transfer import on_device
from mmspec.hosts.slot_cache import SlotCache


@dataclass(frozen=True)
class Distinct:
    """The distinct prompts of a batch, in the order of the rows."""

    ids: Tensor  # `[prompt, column]` int64, padded on the left
    mask: Tensor  # `[prompt, column]` int64: 1 for units, 0 for padding
    prompt: Tensor  # `[row]` int64: which of them every row has

    @classmethod
    def of(cls, ids: Tensor, mask: Tensor) -> "Distinct":
        """Those of the rows `ids` and `mask`, both `[row, column]`, which the host reads."""
        texts = torch.where(mask.bool(), ids, -1).cpu().numpy()  # padding may be any id
        found: dict[bytes, int] = {}
        alike = [found.setdefault(text.tobytes(), row) for row, text in enumerate(texts)]
        first, own = (on_device(rows, ids.device, torch.int64) for rows in ([*found.values()], alike))
        return cls(ids[first], mask[first], torch.searchsorted(first, own))

    @classmethod
    def each(cls, ids: Tensor, mask: Tensor) -> "Distinct":
        """Every row's own, whether or not they are equal."""
        return cls(ids, mask, torch.arange(len(ids), device=ids.device))

    @property
    def repeated(self) -> bool:
        """Whether rows have the same prompt."""
        return len(self.ids) < len(self.prompt)

    def to_rows(self, values: Tensor) -> Tensor:
        """Values `[prompt, …]` of every row: `[row, …]`."""
        return values[self.prompt.to(values.device)] if self.repeated else values

    def spread(self, cache: SlotCache) -> None:
        """Make of a cache that has read the prompts that of the rows: copies of slots and states."""
        if not self.repeated:
            return
        for layer in cache.owning:
            layer.take(self.prompt)
        for recurrent in cache.recurrent.values():
            recurrent.take(self.prompt)
        cache.length, cache.end, cache.shift = (self.to_rows(each) for each in (cache.length, cache.end, cache.shift))
        cache.origin = cache.length
