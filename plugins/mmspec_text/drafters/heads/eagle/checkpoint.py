"""Reading a head of the EAGLE family from a folder or the hub, in any of the layouts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec_text.drafters.heads.eagle.architecture import Architecture
from mmspec_text.drafters.heads.eagle.layouts import Layout, canonical, recognised, settings
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.drafters.heads.eagle.shape_of import architecture_of
from mmspec_text.drafters.heads.eagle.vocabulary import mapped_ids
from mmspec_text.drafters.heads.stored import MAPS, fitted, stored_head
from mmspec_text.drafters.heads.values import numbered_ids

MASKS = ("mask_token_id", "ptd_token_id", "pard_token")
"""Names that kits give to the id of units that are not known."""
UNUSED = ("rotary_emb", "verifier_", "parallel_draft_heads.")
"""Parts of keys that a head does not need: constants, the target's weights, and heads beside it."""


@dataclass(frozen=True)
class Checkpoint:
    """A head as it is stored.

    Attributes:
        name: Where it is from, for messages.
        layout: Its layout.
        architecture: Its shape.
        layer_ids: The layer ids that its config names; () where it names none.
        weights: Its tensors, by the names of the network.
        ignored: Its keys that are not used.
        mask_token: The id that stands for units that are not known; None: it is no head of P-EAGLE.
    """

    name: str
    layout: Layout
    architecture: Architecture
    layer_ids: tuple[int, ...]
    weights: Mapping[str, Tensor]
    ignored: tuple[str, ...]
    mask_token: int | None = None

    def network(self, vocab: int) -> EagleNetwork:
        """The head for a target of so many ids.

        Raises:
            ValueError: Tensors are missing or have other shapes, or the vocabularies do not fit.
        """
        a, what = self.architecture, f"the head {self.name!r}"
        if not a.own_output and a.draft_vocab not in (vocab, a.vocab):
            raise ValueError(f"{what} scores {a.draft_vocab} ids, and has no lm_head.weight for them")
        if not a.own_output and self.weights.get("d2t") is not None and bool(self.weights["d2t"].any()):
            raise ValueError(f"{what} has a map of ids (d2t), and no lm_head.weight for them")
        drafted = min(a.draft_vocab, vocab) if self.weights.get("d2t") is None else a.draft_vocab
        ids = mapped_ids(self.weights.get("d2t"), self.weights.get("t2d"), drafted, vocab, what)
        with torch.device("meta"):
            network = EagleNetwork(a, vocab)
        network = fitted(network, self.weights, what, self.layout.name)
        network.ids = ids
        return network

    @property
    def taken(self) -> tuple[str, ...]:
        """Its keys that are used."""
        return tuple(sorted(self.weights))

    @property
    def shared(self) -> tuple[str, ...]:
        """The parts that are the target's."""
        a = self.architecture
        parts = (("embed_tokens.weight", a.own_embedding), ("lm_head.weight", a.own_output))
        return tuple(key for key, own in parts if not own)


def read_checkpoint(name: str, parallel: bool = False) -> Checkpoint:
    """Read a head.

    Args:
        name: A folder, or a hub name.
        parallel: Whether it is to be one that drafts all units in one pass (P-EAGLE).

    Raises:
        ValueError: There is none, it is a pickle, damaged, or in no known layout; the message names the nearest.
    """
    stored = stored_head(name, canonical, UNUSED)
    layout = recognised(stored.config, stored.keys)
    given = settings(stored.config)
    architecture = architecture_of(given, stored.headers, layout, stored.what)
    if architecture.parallel and not parallel:
        raise ValueError(f"{stored.what} is a head of P-EAGLE (mask_hidden), which the drafter p-eagle takes")
    if parallel and not architecture.parallel:
        raise ValueError(f"{stored.what} has no mask_hidden: it is no head of P-EAGLE; the drafter eagle takes it")
    with torch.device("meta"):
        wanted = {*EagleNetwork(architecture, 1).state_dict(), *MAPS}
    weights, ignored = stored.weights(wanted)
    ids = numbered_ids(given, "eagle_aux_hidden_state_layer_ids", stored.what)
    mask = _mask_token(given, stored.what) if parallel else None
    return Checkpoint(name, layout, architecture, ids, weights, ignored, mask)


def _mask_token(given: Mapping[str, Any], what: str) -> int:
    named = [given[name] for name in MASKS if given.get(name) is not None]
    if not named or type(named[0]) is not int or named[0] < 0:
        raise ValueError(f"{what}: its config has no id {MASKS[0]} (or {', '.join(MASKS[1:])}), but {named[:1]}")
    return int(named[0])
