"""Reading a DFlash head from a folder or the hub, in any of the layouts."""

from dataclasses import dataclass

import torch

from mmspec_text.drafters.heads.checkpoint import HeadCheckpoint
from mmspec_text.drafters.heads.dflash.architecture import DFlashArchitecture
from mmspec_text.drafters.heads.dflash.layouts import FIELDS, LEFTOVERS, SPECULATORS, canonical, recognised, settings
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.dflash.shape_of import architecture_of
from mmspec_text.drafters.heads.stored import MAPS, stored_head
from mmspec_text.drafters.heads.values import numbered_ids


@dataclass(frozen=True)
class DFlashCheckpoint(HeadCheckpoint[DFlashArchitecture]):
    """A head as it is stored."""

    def network(self, vocab: int) -> DFlashNetwork:
        """The head for a target of so many ids; errors as in `filled`."""
        return self.filled(DFlashNetwork, vocab)

    def boundaries(self, layers: int) -> tuple[int, ...]:
        """The boundaries of a target of so many layers whose states the head reads.

        Raises:
            ValueError: The target has no such layers, or the config does not say which ones are meant.
        """
        number, ids = self.architecture.features, self.layer_ids
        field, what = FIELDS[self.layout.convention], f"the head {self.name!r}"
        if not ids and self.layout == SPECULATORS:
            raise ValueError(f"{what} reads {number} states, and its config does not say of which layers ({field})")
        if not ids:  # as the authors choose them: from the second layer to the last but three
            ids = tuple(round(1 + i * (layers - 4) / (number - 1)) for i in range(number)) if number > 1 else ()
            ids = ids or (layers // 2,)
        if len(ids) != number:
            raise ValueError(f"{what} reads {number} states and names {len(ids)} layers ({field})")
        found = tuple(i + 1 for i in ids) if self.layout.convention == "output" else ids
        if not all(0 <= boundary <= layers for boundary in found):
            raise ValueError(
                f"{what} reads the layers {', '.join(map(str, ids))} of its target, and this one has {layers}: it is a "
                "head of another target"
            )
        return found


def read_dflash(name: str) -> DFlashCheckpoint:
    """Read a head.

    Args:
        name: A folder, or a hub name.

    Raises:
        ValueError: There is none, it is damaged, or not read whole; the message names the nearest layout.
    """
    stored = stored_head(name, "a DFlash", canonical, LEFTOVERS)
    layout = recognised(stored.config, stored.keys)
    given = settings(stored.config)
    architecture = architecture_of(given, stored, layout)
    with torch.device("meta"):
        wanted = {*DFlashNetwork(architecture, 1).state_dict(), *MAPS}
    weights, ignored = stored.weights(wanted)
    ids = numbered_ids(given, FIELDS[layout.convention], stored.what)
    return DFlashCheckpoint(name, layout, architecture, ids, weights, ignored)
