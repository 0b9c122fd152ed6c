"""Another negative prompt within a call: the unconditional half is read again, committed units included.

The new prompt may be longer or shorter than the old one: the rows of a slot cache have lengths of their own.
"""

import torch
from torch import Tensor

from mmspec.hosts import prefill
from mmspec.hosts.anatomy import Anatomy
from mmspec.hosts.halves import Halves
from mmspec.hosts.passes import Passes
from mmspec.hosts.slot_cache import SlotCache


def refuse_renewal(halves: Halves, prompts: int) -> None:
    """Refuse another negative prompt where a call cannot have it.

    Raises:
        ValueError: The call has no unconditional half, there are more or fewer prompts than rows, or the cache holds
            something else than the keys of all units.
    """
    slots = halves.slots
    halves.refuse_unguided()
    if prompts != halves.rows:
        raise ValueError(f"there are {prompts} negative prompts for {halves.rows} rows; give one a row")
    if slots.rings or slots.recurrent or slots.holes is not None:
        raise ValueError(
            "the negative prompt of this call cannot change: its cache has layers with a window or a state, or padding"
        )


@torch.no_grad()
def renew_null(
    halves: Halves, anatomy: Anatomy, ids: Tensor, mask: Tensor, units: Tensor, words: Passes, coded: Passes
) -> None:
    """Let guidance lead away from another prompt, as if it had been the negative prompt from the beginning.

    Args:
        halves: The call's cache, which `refuse_renewal` let pass.
        anatomy: The facts about the model.
        ids: The negative prompts `[row, any]`, padded on the left.
        mask: Their mask.
        units: `[row, n]`: every row's committed units first; what follows them in a row is ignored.
        words: Runs the model over prompts.
        coded: Runs the model over units.
    """
    given = mask.sum(1)
    most = int(given.max()) + units.shape[1]
    fresh = SlotCache(anatomy.layers(), halves.rows, most, ids.device, halves.slots.fixed)
    committed = (halves.slots.length - halves.given)[: halves.rows].clamp(max=units.shape[1])
    prefill.prefill_chunks(words, fresh, ids, mask)
    prefill.append(coded, fresh, units, committed)
    halves.replace_null(fresh, given, anatomy.layers())
