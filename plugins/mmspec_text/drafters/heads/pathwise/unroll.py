"""A head that steps along paths, along a known text: what it would draft behind every unit, for training.

Step j of row t is the draft of x_{t+2+j} behind the root x_{t+1}, if the head is told the units between. All rows are
roots of their own, so that they are one batch of single nodes.
"""

from collections.abc import Iterator

from torch import Tensor

from mmspec_text.drafters.heads.pathwise.head import PathHead
from mmspec_text.drafters.heads.unroll import rows_of


def walked(head: PathHead, features: Tensor, units: Tensor, steps: int) -> Iterator[Tensor]:
    """Step along a text.

    Args:
        head: The head; one that reads earlier features through attention has no such form.
        features: `[batch, unit, width]`: the target's features of all units.
        units: `[batch, unit]` int64.
        steps: Units of a draft, at most the head's.

    Yields:
        For every step `[batch, row, vocab]`: the logits of the unit at `row + 2 + step`. There are `unit - steps` rows.

    Raises:
        ValueError: The text is too short for so many steps.
    """
    batch, rows = len(units), rows_of(units, steps)

    def fed(step: int) -> Tensor:
        return units[:, step + 1 : step + 1 + rows].reshape(-1, 1)

    states = head.rooted(features[:, :rows].flatten(0, 1)[:, None], fed(0))
    for step in range(steps):
        if step:
            states = head.followed(states, fed(step), step)
        yield head.logits(states, step)[:, 0].unflatten(0, (batch, rows))
