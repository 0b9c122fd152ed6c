"""Another unconditional prompt within a call: that half is prefilled again, with the committed units behind it."""

import torch
from torch import Tensor

from mmspec.hosts.halves import ROOM, Halves
from mmspec.hosts.passes import Passes
from mmspec.hosts.prefill import append, prefill_chunks
from mmspec.hosts.slot_cache import SlotCache


@torch.no_grad()
def renew_prompt(halves: Halves, words: Passes, codes: Passes, null: tuple[Tensor, Tensor], units: Tensor) -> Tensor:
    """Let guidance lead away from another prompt, of any length for which there is room.

    Args:
        halves: The cache of the call.
        words: Reads prompts.
        codes: Reads units.
        null: Ids and mask `[rows, prompt]` of the prompt.
        units: `[rows, n]`: every row's committed units first; what follows them in a row is ignored.

    Returns:
        `[physical]` int64: the units of both halves' prompts, as in `Halves.given`.

    Raises:
        ValueError: The call began without guidance or with other rows, there is no room, or layers keep a state.
    """
    slots, rows, (ids, mask) = halves.slots, halves.rows, null
    refuse_unguided(halves)
    if len(ids) != rows:
        raise ValueError(f"there are {len(ids)} prompts to lead away from, and {rows} rows")
    if slots.recurrent or slots.rings:
        raise ValueError("what guidance leads away from cannot change where layers keep a state, or a window's units")
    given, room = mask.sum(1), max(slots.begun[:rows]) + ROOM
    if int(given.max()) > room:
        raise ValueError(
            f"a prompt to lead away from has {int(given.max())} tokens, and this call has room for {room}: {ROOM} more "
            "than its longest prompt"
        )
    fresh = SlotCache(codes.anatomy.layers(), rows, slots.most, ids.device, slots.fixed)
    prefill_chunks(words, fresh, ids, mask)
    append(codes, fresh, units, slots.length[:rows] - halves.given[:rows])
    put_half(slots, rows, fresh)
    slots.set_length(torch.cat([slots.length[:rows], fresh.length]))
    slots.begun = [*slots.begun[:rows], *given.tolist()]
    slots.longest = max(slots.longest, int(fresh.length.max()))
    return torch.cat([halves.given[:rows], given])


def refuse_unguided(halves: Halves) -> None:
    """Refuse a call without an unconditional half.

    Raises:
        ValueError: Says so.
    """
    if len(halves.slots.length) == halves.rows:
        raise ValueError("this call began without guidance, so there is nothing that it could lead away from")


def put_half(slots: SlotCache, rows: int, fresh: SlotCache) -> None:
    """Let the rows from `rows` on hold the keys and values of `fresh`, which has as many."""
    slots.reserve(fresh.capacity)
    fresh.reserve(slots.capacity)
    for layer, renewed in zip(slots.owning, fresh.owning, strict=True):
        layer.keys[rows:], layer.values[rows:] = renewed.keys, renewed.values
