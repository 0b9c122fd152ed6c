"""A head unrolled over a known text: what it would draft behind every unit, several units deep, for training.

Step j of row t reads unit x_{t+1+j} and what the head returned in step j - 1, in step 0 the target's feature of x_t. It
sees the rows up to t of step 0, which had true features, and its own rows of the steps 1 … j: exactly what it sees when
it drafts x_{t+2}, x_{t+3}, … behind the root x_{t+1}, and is told the text's units. ("Training-time test" of EAGLE-3,
arXiv 2503.01840, § 3.1.) The head's own network runs, over keys that are kept for the gradient and not in a cache.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mmspec.hosts.masks import PassGeometry
from mmspec_text.drafters.heads.head import Head


class _Kept:
    """Keys and values of one layer, of all steps so far."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        self._keys.append(key)
        self._values.append(value)
        return torch.cat(self._keys, 2), torch.cat(self._values, 2)


class KeptSlots:
    """What a head's network reads of a cache."""

    def __init__(self, depth: int) -> None:
        self.layers = [_Kept() for _ in range(depth)]

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return self.layers[layer].update(key, value)


def unrolled(head: Head, features: Tensor, units: Tensor, steps: int) -> Iterator[Tensor]:
    """Unroll a head over a text.

    Args:
        head: The head.
        features: `[batch, unit, width]`: the target's features of all units.
        units: `[batch, unit]` int64.
        steps: Units of a draft.

    Yields:
        For every step `[batch, row, hidden]`: the states that the head returns, from which it scores the unit at
        `row + 2 + step`. There are `unit - steps` rows.

    Raises:
        ValueError: The text is too short for so many steps.
    """
    rows = rows_of(units, steps)
    slots: Any = KeptSlots(head.depth)
    states = head.taken_in(features[:, :rows])
    for step in range(steps):
        geometry = _geometry(rows, step, units.device)
        states = head.passed(units[:, step + 1 : step + 1 + rows], states, slots, geometry)
        yield states


def rows_of(units: Tensor, steps: int) -> int:
    """The rows of a text `[batch, unit]` behind which a draft of so many units can be compared with it.

    Raises:
        ValueError: There is none.
    """
    rows = units.shape[1] - steps
    if rows < 1:
        raise ValueError(f"a text of {units.shape[1]} units has no row that is followed by {steps} units and one more")
    return rows


def _geometry(rows: int, step: int, device: torch.device) -> PassGeometry:
    """The rows of one step as nodes of a tree: the text is its trunk, and every row has a branch of its own."""
    place = torch.arange(rows, device=device)
    trunk, own = place[:, None] >= place, torch.eye(rows, dtype=torch.bool, device=device)
    ancestor = torch.cat([trunk, *[own] * step], 1)[None]
    depth = torch.cat([place + later for later in range(step + 1)])[None]
    return PassGeometry(torch.zeros(1, dtype=torch.int64, device=device), ancestor, depth, ancestor.shape[2])
