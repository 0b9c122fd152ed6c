"""Reading a head of the EAGLE family from a folder or the hub, in any of the layouts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from mmspec.hosts.loading import fetched, locate
from mmspec.hosts.weight_files import CONFIG, StoredTensor, differences, stored_tensors, weight_files
from mmspec.registry.printable import shown
from mmspec.untrusted import read_json
from mmspec_text.drafters.heads.eagle.architecture import Architecture
from mmspec_text.drafters.heads.eagle.layouts import Layout, canonical, recognised, settings
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.drafters.heads.eagle.shape_of import architecture_of
from mmspec_text.drafters.heads.eagle.vocabulary import mapped_ids

MAPS = ("d2t", "t2d")
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
    """

    name: str
    layout: Layout
    architecture: Architecture
    layer_ids: tuple[int, ...]
    weights: Mapping[str, Tensor]
    ignored: tuple[str, ...]

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
        expected = {key: tuple(value.shape) for key, value in network.state_dict().items()}
        here = {key: value for key, value in self.weights.items() if key not in MAPS}
        missing = expected.keys() - here.keys()
        other = [
            f"{key}: {list(here[key].shape)}, not {list(shape)}"
            for key, shape in expected.items()
            if key in here and tuple(here[key].shape) != shape
        ]
        if wrong := differences(missing=missing, of_another_shape=other):
            raise ValueError(f"the weights of {what} (layout {self.layout.name}) do not fit: {wrong}")
        network.load_state_dict({key: here[key] for key in expected}, assign=True)
        network.ids = ids
        return network.eval().requires_grad_(False)

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


def read_checkpoint(name: str) -> Checkpoint:
    """Read a head.

    Args:
        name: A folder, or a hub name.

    Raises:
        ValueError: There is none, it is a pickle, damaged, or in no known layout; the message names the nearest.
    """
    folder = fetched(locate(name))
    what = f"the head {name!r}"
    config = read_json(folder / CONFIG)
    raw = stored_tensors(folder)
    if not raw:
        raise ValueError(f"{what} has no weights in {folder}")
    layout = recognised(config, raw)
    used = {key: canonical(key) for key in raw if not any(part in key for part in UNUSED)}
    _refuse_doubles(used, what)
    stored = {new: raw[old] for old, new in used.items()}
    _refuse_integers(stored, what)
    given = settings(config)
    architecture = architecture_of(given, stored, layout, what)
    with torch.device("meta"):
        wanted = {*EagleNetwork(architecture, 1).state_dict(), *MAPS}
    tensors = {key: value for path in weight_files(folder) for key, value in load_file(path).items()}
    weights = {new: tensors[old] for old, new in used.items() if new in wanted}
    ignored = tuple(sorted(key for key in raw if used.get(key) not in wanted))
    return Checkpoint(name, layout, architecture, _layer_ids(given, what), weights, ignored)


def _refuse_doubles(used: Mapping[str, str], what: str) -> None:
    """Refuse a checkpoint with two tensors for one place."""
    seen: dict[str, str] = {}
    for old, new in used.items():
        if new in seen:
            raise ValueError(f"{what}: {shown(seen[new])} and {shown(old)} are the same part ({shown(new)})")
        seen[new] = old


def _refuse_integers(stored: Mapping[str, StoredTensor], what: str) -> None:
    packed = [key for key, tensor in stored.items() if tensor.is_integer and key not in MAPS]
    if packed:
        raise ValueError(f"{what} is quantised ({shown(packed[0])} holds integers); use its weights in full precision")


def _layer_ids(given: Mapping[str, Any], what: str) -> tuple[int, ...]:
    ids = given.get("eagle_aux_hidden_state_layer_ids") or ()
    if not isinstance(ids, Sequence) or isinstance(ids, str) or not all(type(i) is int for i in ids):
        raise ValueError(f"{what}: eagle_aux_hidden_state_layer_ids are numbers, got {ids!r}")
    return tuple(ids)
