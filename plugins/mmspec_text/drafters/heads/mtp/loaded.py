"""Multi-token layers of live targets, each loaded and tried once: a decoder may be put together for every call."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from mmspec.hosts.anatomy import Anatomy
from mmspec_text.drafters.heads.eagle.loaded import Loaded
from mmspec_text.drafters.heads.mtp.checkpoint import MtpCheckpoint, read_checkpoint
from mmspec_text.drafters.heads.mtp.network import MtpNetwork


@dataclass
class Layers:
    """Multi-token layers for a target."""

    network: MtpNetwork  # the layers
    report: Loaded  # what was read, and how it did on the first prompt that was long enough


_known: "WeakKeyDictionary[nn.Module, dict[str, Layers]]" = WeakKeyDictionary()


def layers_of(anatomy: Anatomy, source: str | MtpCheckpoint | None) -> Layers:
    """The multi-token layers for a target.

    Args:
        anatomy: The target.
        source: A folder or a hub name; None: where the target is from; or layers that were read.

    Raises:
        ValueError: There are none, or they do not fit the target.
    """
    if isinstance(source, MtpCheckpoint):
        return _built(source, anatomy)
    name, revision = (source, None) if source else _origin(anatomy.model)
    known = _known.setdefault(anatomy.model, {})
    if name not in known:
        known[name] = _built(read_checkpoint(name, anatomy, revision), anatomy)
    return known[name]


def _built(checkpoint: MtpCheckpoint, anatomy: Anatomy) -> Layers:
    shared = ("embed_tokens.weight", "lm_head.weight")
    report = Loaded(checkpoint.name, checkpoint.family.name, checkpoint.taken, shared, checkpoint.ignored)
    return Layers(MtpNetwork(checkpoint, anatomy), report)


def _origin(model: Any) -> tuple[str, str | None]:
    """The folder or hub name that a model was loaded from, and the commit."""
    name = model.config.name_or_path
    if not isinstance(name, str) or not name:
        raise ValueError(
            "the target was not loaded from a checkpoint, where its multi-token layers would be; name one, as in "
            "drafter=<folder or hub name>"
        )
    return name, getattr(model.config, "_commit_hash", None)  # transformers sets it where it knows one
