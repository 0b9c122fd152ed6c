"""Which layers of a call keep their latest slots in a ring (`mmspec.hosts.slot_layer.RingLayer`), and how many.

A ring holds the window, the slots that one pass writes behind it, and what a roll-back may give up: where rows stop at
a text or an end, the host sees it a round or two late, and returns a cache that ends before the last drafts.
"""

from collections.abc import Sequence
from typing import Any

from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from mmspec.hosts.slot_layer import in_blocks

ROLL_BACK = 4
"""So many drafts may be taken back."""


def rings(layers: Sequence[Any], given: Cache | None, chunk: int, width: int) -> dict[int, int]:
    """The places of a ring for every window among a model's cache layers; none if a call needs all of their units.

    Args:
        layers: Empty cache layers as transformers makes them.
        given: The cache that came with the call, or None.
        chunk: The most units of a prefill pass.
        width: The most nodes of a draft.
    """
    if not _suffice(given, layers):
        return {}
    slack = max(chunk, ROLL_BACK * width)
    return {window: in_blocks(window + slack) for window in windows(layers)}


def windows(layers: Sequence[Any]) -> set[int]:
    """The windows (or chunks) of a model's layers."""
    return {layer.sliding_window for layer in layers if isinstance(layer, DynamicSlidingWindowLayer)}


def _suffice(given: Cache | None, layers: Sequence[Any]) -> bool:
    """Whether the cache that a call will return needs no more of a layer with a window than the window."""
    if given is None or type(given) is not DynamicCache:  # the call returns a cache that we make
        return True
    windowed = [number for number, layer in enumerate(layers) if isinstance(layer, DynamicSlidingWindowLayer)]
    theirs = [given.layers[number] if number < len(given.layers) else None for number in windowed]
    return all(isinstance(layer, DynamicSlidingWindowLayer) and not layer.record_past for layer in theirs)
