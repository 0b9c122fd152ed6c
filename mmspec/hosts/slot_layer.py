"""Keys and values of one layer in the slots of a cache: all slots of a row, or the latest ones in a ring.

A layer whose window is shorter than the call needs the slots of its window and those that passes write, no others. They
lie in a ring: slot `s` of a row is at place `s % ring`. A pass sees the whole ring, and its mask
(`mmspec.hosts.masks`) knows which slot is at which place, so that no key is ever moved.

A ring holds the window, the slots that one pass writes behind it, and what a roll-back may give up: where rows stop at
a text or an end, the host sees it a round or two late, and returns a cache that ends before the last drafts.
"""

from collections.abc import Sequence
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicSlidingWindowLayer

from mmspec.core import kernels
from mmspec.core.once import known

BLOCK = 64  # slots are allocated, and attended over, in multiples of so many


Places = tuple[Tensor, Tensor, Tensor]
"""Row, head and place of states: int64 tensors that broadcast to `[batch, heads, n]`."""


class Slots(Protocol):
    """The part of its cache that a layer reads (`mmspec.hosts.slot_cache.SlotCache`)."""

    most: int
    capacity: int
    visible: int
    start: int | None
    slots: Tensor
    written: "dict[tuple[int, int, torch.device], Places]"


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer: `[batch, heads, slots, width]`."""

    is_compileable = True
    is_sliding = False
    is_croppable = False

    def __init__(self, owner: Slots) -> None:
        super().__init__()
        self._owner = ref(owner)  # a cycle would keep a call's keys until Python looks for cycles

    @property
    def owner(self) -> Slots:
        """The cache."""
        owner = self._owner()
        assert owner is not None
        return owner

    @property
    def places(self) -> int:
        """The slots that the layer holds when the cache has allocated what it has."""
        return self.owner.capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        batch, heads, _, width = key_states.shape
        self.keys = key_states.new_zeros(batch, heads, self.places, width)
        self.values = value_states.new_zeros(batch, heads, self.places, value_states.shape[-1])
        self._rows = torch.arange(batch, device=self.keys.device)[:, None, None]
        self._heads = torch.arange(heads, device=self.keys.device)[:, None]
        self.is_initialized = True

    def grow(self) -> None:
        """Copy keys and values into larger tensors, after the cache's capacity was raised."""
        if self.places > self.keys.shape[2]:
            self.keys, self.values = _longer(self.keys, self.places), _longer(self.values, self.places)

    def take(self, rows: Tensor) -> None:
        """Hold copies of the rows `rows [n]`, and nothing else."""
        rows = rows.to(self.keys.device)
        self._hold(self.keys[rows], self.values[rows])

    def join(self, others: "Sequence[SlotLayer]") -> None:
        """Hold the rows of other layers behind its own, after the cache's capacity was raised to the largest."""
        keys, values = ([getattr(layer, name) for layer in (self, *others)] for name in ("keys", "values"))
        self._hold(*(torch.cat([_longer(part, self.places) for part in parts]) for parts in (keys, values)))

    def _hold(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        self._rows = torch.arange(len(keys), device=keys.device)[:, None, None]

    def load(self, other: "SlotLayer") -> None:
        """Copy the keys and values of another layer of this kind; places that only one of them has hold nothing yet."""
        if not self.is_initialized:
            with torch.inference_mode(False):
                self.lazy_initialization(other.keys, other.values)
        both = min(self.keys.shape[2], other.keys.shape[2])
        self.keys[:, :, :both] = other.keys[:, :, :both]
        self.values[:, :, :both] = other.values[:, :, :both]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.owner.start is None:
            self._put(self._written(), key_states, value_states)
        else:
            self._write_run(self.owner.start, key_states, value_states)
        visible = min(self.owner.visible, self.places)
        return self.keys.narrow(2, 0, visible), self.values.narrow(2, 0, visible)

    def _write_run(self, start: int, key_states: Tensor, value_states: Tensor) -> None:
        """Put states into consecutive slots, the same of every row."""
        self.keys.narrow(2, start, key_states.shape[2]).copy_(key_states)
        self.values.narrow(2, start, key_states.shape[2]).copy_(value_states)

    def place(self, slots: Tensor) -> Tensor:
        """Where slots lie; a model may be spread over devices, layer by layer."""
        return slots.to(self.keys.device)

    def write(self, slots: Tensor, key_states: Tensor, value_states: Tensor) -> None:
        """Put states `[batch, heads, n, width]` into slots `[batch, n]`."""
        self._put(self._at(slots), key_states, value_states)

    def _put(self, at: Places, key_states: Tensor, value_states: Tensor) -> None:
        self.keys.index_put_(at, key_states)  # compiled, `scatter_` would copy all slots
        self.values.index_put_(at, value_states)

    def _at(self, slots: Tensor) -> Places:
        return self._rows, self._heads, self.place(slots)[:, None]

    def _written(self) -> Places:
        """Where the present pass writes; computed once for all layers of one form, by compiled code where it uses them.
        On CUDA `index_put_` copies an index whose tensors have not all the same strides, in every call.
        """
        if torch.compiler.is_compiling():
            return self._at(self.owner.slots)
        written, form = self.owner.written, (self.places, len(self._heads), self.keys.device)
        if form not in written:
            place = self.place(self.owner.slots)[:, None].expand(-1, len(self._heads), -1).contiguous()
            written[form] = *_rows_and_heads(place.shape, place.device), place
        return written[form]

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of slots `[batch, n]`, or `[batch, heads, n]` if heads differ: `[batch, heads, n, width]`."""
        at = self.place(slots)[..., None] if slots.dim() == 3 else self.place(slots)[:, None, :, None]
        keys = self.keys.gather(2, at.expand(-1, self.keys.shape[1], -1, self.keys.shape[-1]))
        return keys, self.values.gather(2, at.expand(-1, self.values.shape[1], -1, self.values.shape[-1]))

    def fill(self, slots: Tensor, key_states: Tensor, value_states: Tensor) -> None:
        """Put states of a prompt into an empty layer; slots below 0 are padding. Of a layer with a window transformers
        holds the window, less than a ring: no two slots lie at one place.
        """
        self.lazy_initialization(key_states, value_states)
        # The last place is written anew before it is read.
        self.write(torch.where(slots < 0, self.places - 1, slots), key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.visible, 0

    def get_seq_length(self) -> int:
        return self.owner.visible

    def get_max_length(self) -> int:
        return self.owner.most


@known
def _rows_and_heads(shape: torch.Size, device: torch.device) -> tuple[Tensor, Tensor]:
    """The row and the head of every entry of a tensor `[batch, heads, n]`."""
    with torch.inference_mode(False):  # passes outside of inference mode use them, too
        row, head, _ = (torch.arange(size, device=device) for size in shape)
        return row[:, None, None].expand(shape).contiguous(), head[:, None].expand(shape).contiguous()


class RingLayer(SlotLayer):
    """The latest slots of every row: `[batch, heads, ring, width]`, at least the window and what a pass or a roll-back
    can touch behind it.
    """

    def __init__(self, owner: Slots, ring: int) -> None:
        super().__init__(owner)
        self.ring = ring

    @property
    def places(self) -> int:
        return min(self.owner.capacity, self.ring)

    def place(self, slots: Tensor) -> Tensor:
        return super().place(slots) % self.ring

    def _write_run(self, start: int, key_states: Tensor, value_states: Tensor) -> None:
        first, nodes = start % self.ring, key_states.shape[2]
        if first + nodes <= self.ring:
            super()._write_run(first, key_states, value_states)
            return
        slots = torch.arange(start, start + nodes, device=key_states.device)
        self.write(slots.expand(len(key_states), -1), key_states, value_states)


def in_blocks(slots: int) -> int:
    """So many slots, rounded up to whole blocks."""
    return -(-slots // BLOCK) * BLOCK


def in_powers(slots: int) -> int:
    """So many slots, rounded up to a power of two of blocks."""
    return BLOCK << (in_blocks(slots) // BLOCK - 1).bit_length()


def _longer(states: Tensor, capacity: int) -> Tensor:
    """States `[batch, heads, slots, width]` with so many slots, of which new ones are 0."""
    if states.shape[2] == capacity:
        return states
    with torch.inference_mode(False):  # a cache that grew in a pass is written outside of inference mode, too
        longer = states.new_zeros(*states.shape[:2], capacity, states.shape[3])
    longer.narrow(2, 0, states.shape[2]).copy_(states)
    return longer


def move_accepted(
    layers: Sequence[SlotLayer], length: Tensor, path: Tensor, count: Tensor, tables: dict[int, Any]
) -> None:
    """Put accepted nodes into the slots behind the root.

    `layers` are those that hold keys. `length [batch]` int64 counts committed units; the root's slot follows them.
    `path [batch, depth]` has node ids after the root, -1 padded, of which the first `count [batch]` int64 are kept,
    root included; the others stay where they are. `tables` is what a kernel keeps of these layers.
    """
    states = [states for layer in layers for states in (layer.keys, layer.values)]
    # Not inside traced code, which would not know what the kernel writes.
    one_device = kernels.available(path.device) and all(each.device == path.device for each in states)
    if states and one_device and not torch.compiler.is_compiling():
        from mmspec.core.kernels import commit

        commit.move_accepted(states, length, path, count, tables)
        return
    order = torch.arange(1, path.shape[1] + 1, device=path.device)
    destination = length[:, None] + order
    kept = order < count[:, None]
    source = torch.where(kept, length[:, None] + path.clamp(min=0), destination)
    for layer in layers:
        layer.write(destination, *layer.read(source))


ROLL_BACK = 4  # so many drafts may be taken back


def rings(layers: Sequence[Any], given: Cache | None, chunk: int, width: int) -> dict[int, int]:
    """The places of a ring for every window among a model's cache layers; none if a call needs all of their units.

    A prefill pass has at most `chunk` units, a draft `width` nodes; `given` is the cache that came with the call.
    """
    if not _suffice(given, layers):
        return {}
    slack = max(chunk, ROLL_BACK * width)
    return {window: in_blocks(window + slack) for window in windows(layers)}


def windows(layers: Sequence[Any]) -> set[int]:
    """The windows (or chunks) of a model's layers."""
    return {layer.sliding_window for layer in layers if isinstance(layer, DynamicSlidingWindowLayer)}


def _suffice(given: Cache | None, layers: Sequence[Any]) -> bool:
    """True if the cache that a call will return needs no more of a layer with a window than the window."""
    if given is None or type(given) is not DynamicCache:  # the call returns a cache that we make
        return True
    windowed = [number for number, layer in enumerate(layers) if isinstance(layer, DynamicSlidingWindowLayer)]
    theirs = [given.layers[number] if number < len(given.layers) else None for number in windowed]
    return all(isinstance(layer, DynamicSlidingWindowLayer) and not layer.record_past for layer in theirs)
