"""Reading a head of the EAGLE family from a folder or the hub, in any of the layouts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from mmspec_text.drafters.heads.checkpoint import HeadCheckpoint
from mmspec_text.drafters.heads.eagle.architecture import Architecture
from mmspec_text.drafters.heads.eagle.grid import by_halves
from mmspec_text.drafters.heads.eagle.layouts import canonical, recognised, settings
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.drafters.heads.eagle.shape_of import LSTM, architecture_of
from mmspec_text.drafters.heads.stored import MAPS, stored_head
from mmspec_text.drafters.heads.values import numbered_ids

MASKS = ("mask_token_id", "ptd_token_id", "pard_token")
"""Names that kits give to the id of units that are not known."""
Kind = Literal["eagle", "p-eagle", "falcon"]
MARKS: Mapping[Kind, tuple[str, str]] = {"p-eagle": ("P-EAGLE", "mask_hidden"), "falcon": ("Falcon", LSTM)}
"""Names of other kinds of heads, and the tensors by which they are known."""
LEFTOVERS = ("rotary_emb", "verifier_", "parallel_draft_heads.")
"""Parts of keys of what files carry beside a head: constants, the target's weights (speculators), Medusa's heads for
units behind its own (ModelOpt)."""
PAST = "lstm.weight_hh_l"
"""Beginning of an LSTM's weights for its own past; a cell that begins with nothing has none (Falcon)."""


@dataclass(frozen=True)
class Checkpoint(HeadCheckpoint[Architecture]):
    """A head as it is stored; the other attributes are those of `HeadCheckpoint`."""

    mask_token: int | None = None  # the id that stands for units that are not known; None: it is no head of P-EAGLE

    def network(self, vocab: int) -> EagleNetwork:
        """The head for a target of so many ids; errors as in `filled`."""
        return self.filled(EagleNetwork, vocab)


def read_checkpoint(name: str, kind: Kind = "eagle") -> Checkpoint:
    """Read a head.

    Args:
        name: A folder, or a hub name.
        kind: What it is to be: a head that drafts all units in one pass (`p-eagle`), or blocks (`falcon`), or neither.

    Raises:
        ValueError: There is none, it is damaged, or not read whole; the message names the nearest layout.
    """
    stored = stored_head(name, "an EAGLE", canonical, (*LEFTOVERS, PAST))
    layout = recognised(stored.config, stored.keys)
    given = settings(stored.config)
    architecture = architecture_of(given, stored, layout)
    found: Kind = "p-eagle" if architecture.parallel else "falcon" if architecture.block > 1 else "eagle"
    if found != kind:
        if found in MARKS:
            title, mark = MARKS[found]
            raise ValueError(f"{stored.what} is a head of {title} ({mark}), which the drafter {found} takes")
        title, mark = MARKS[kind]
        raise ValueError(f"{stored.what} has no {mark}: it is no head of {title}; the drafter eagle takes it")
    with torch.device("meta"):
        wanted = {*EagleNetwork(architecture, 1).state_dict(), *MAPS}
    weights, ignored = stored.weights(wanted)
    if architecture.grid:
        weights = by_halves(weights, architecture)
    ids = numbered_ids(given, "eagle_aux_hidden_state_layer_ids", stored.what)
    mask = _mask_token(given, stored.what) if architecture.parallel else None
    return Checkpoint(name, layout, architecture, ids, weights, ignored, mask)


def _mask_token(given: Mapping[str, Any], what: str) -> int:
    named = [given[name] for name in MASKS if given.get(name) is not None]
    if not named or type(named[0]) is not int or named[0] < 0:
        raise ValueError(f"{what}: its config has no id {MASKS[0]} (or {', '.join(MASKS[1:])}), but {named[:1]}")
    return int(named[0])
