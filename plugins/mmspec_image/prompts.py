"""Prompts as ids, for pictures that a language model draws."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from mmspec.hosts.halves import stacked
from mmspec.kits.pictures.arguments import refuse_count


class Ids(NamedTuple):
    """Prompts as ids, padded on the left.

    Attributes:
        ids: `[row, prompt]` int64.
        mask: `[row, prompt]` int64: 0 at padding.
    """

    ids: Tensor
    mask: Tensor

    def repeated(self, times: int) -> "Ids":
        """Every row `times` times; the rows of a prompt stay together."""
        return Ids(*(part.repeat_interleave(times, 0) for part in self))

    def to(self, device: object) -> "Ids":
        """The same on a device."""
        return Ids(self.ids.to(device), self.mask.to(device))


def with_prompts(words: Sequence[str | None], now: Ids, ids_of: Callable[[list[str]], Ids]) -> Ids:
    """Prompts, some of which are replaced; all are as long as the longest one.

    Args:
        words: For every row what it says from now on; None: as before.
        now: The prompts as they are.
        ids_of: Writes prompts as ids.

    Raises:
        ValueError: There is not one for every row, or a prompt is empty.
    """
    refuse_count(words, len(now.ids))
    rows = [
        Ids(now.ids[i : i + 1], now.mask[i : i + 1]) if said is None else ids_of([said]).to(now.ids.device)
        for i, said in enumerate(words)
    ]
    return Ids(*stacked(*rows))
