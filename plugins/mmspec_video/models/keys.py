"""The key/value cache of a causal video transformer: keys of finished frames, which later passes need not recompute.

By causality, keys and values of a finished frame depend neither on later frames nor on how noisy these are, so they
serve all denoising steps of the next frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import take_nodes

Pair = tuple[Tensor, Tensor]  # keys and values of some frames in one layer: `[row, frame, cell, head, width]` each


@dataclass
class LayerKeys:
    """One layer's cache during a pass."""

    earlier: Pair | None = None  # keys and values of earlier frames; None: there are none
    current: Pair | None = None  # keys and values of the frames that the pass computes; None before the pass

    def update(self, keys: Tensor, values: Tensor) -> Pair:
        """Store the pass's own keys and values; returns all frames' keys and values, the earlier first."""
        self.current = keys, values
        if self.earlier is None:
            return keys, values
        return torch.cat([self.earlier[0], keys], 1), torch.cat([self.earlier[1], values], 1)


FrameKeys = Sequence[LayerKeys]  # the caches of all layers of a model


def current(keys: FrameKeys) -> list[Pair]:
    """Keys and values of the frames that the last pass computed, layer by layer."""
    return [layer.current for layer in keys if layer.current is not None]


def select_frames(pairs: Sequence[Pair], frames: Tensor) -> list[Pair]:
    """Keys and values of the frames `[row, n]`."""
    return [(take_nodes(keys, frames), take_nodes(values, frames)) for keys, values in pairs]


def concatenated(first: Sequence[Pair], second: Sequence[Pair]) -> list[Pair]:
    """The frames of `first`, then the frames of `second`, layer by layer."""
    both = zip(first, second, strict=True)
    return [(torch.cat([a[0], b[0]], 1), torch.cat([a[1], b[1]], 1)) for a, b in both]


def causal(frames: int, device: torch.device | str = "cpu") -> Tensor:
    """The causal mask over the frames of one pass: `[1, frame, frame]` bool."""
    return torch.ones(1, frames, frames, dtype=torch.bool, device=device).tril()


def positions_and_mask(
    x: Tensor, position: Tensor | None, seen: Tensor | None, keys: FrameKeys | None
) -> tuple[Tensor, Tensor | None]:
    """Defaults of a model's `forward` over `x [row, frame, …]`: frame numbers from 0 on, and the causal mask."""
    rows, frames = x.shape[:2]
    if position is None:
        position = torch.arange(frames, device=x.device).expand(rows, -1)
    if seen is None and frames > 1:
        assert keys is None or keys[0].earlier is None, "several frames behind earlier ones need `seen`"
        seen = causal(frames, x.device).expand(rows, -1, -1)
    return position, seen
