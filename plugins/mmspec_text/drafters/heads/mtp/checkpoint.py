"""Reading multi-token layers from a target's checkpoint: the list of its keys first, then the files that hold them."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.hosts.loading import fetch_files, indexed, locate
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.weight_files import CONFIG, differences, key_files, read_tensors
from mmspec.registry.printable import shown
from mmspec.registry.warn import warn
from mmspec.untrusted import read_json
from mmspec_text.drafters.heads.mtp.family import Family, is_of_layers, own_keys, plain_key, recognised

COUNTS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
"""Settings that count the depths of a checkpoint."""
SCALE = "_scale_inv"
"""End of the key of a block-quantised tensor's scales, which are multiplied with."""
BLOCK = 128
"""Rows and columns with one scale, where the config does not say."""
MANY = 64
"""More depths than any checkpoint has."""


@dataclass(frozen=True)
class MtpCheckpoint:
    """Multi-token layers as they are stored."""

    name: str  # where they are from, for messages
    family: Family  # their family
    depths: int  # their number
    own: Mapping[str, Tensor]  # tensors of the parts beside the blocks, by `layers.{i}.` and the network's names.
    blocks: Mapping[str, Tensor]  # tensors of the blocks, by `layers.{i}.` and the layer's names in checkpoints.
    originals: tuple[str, ...]  # beginning of the keys of every block in the checkpoint
    taken: tuple[str, ...]  # keys that are used
    ignored: tuple[str, ...] = ()  # keys of these layers that are not: copies of the target's weights


def read_checkpoint(name: str, model_info: ModelInfo, revision: str | None = None) -> MtpCheckpoint:
    """Read the multi-token layers of a target from a folder or the hub."""
    what, place = f"the checkpoint {name!r}", locate(name)
    folder, layers = indexed(place, revision), len(model_info.language.layers)
    files = key_files(folder)
    stored = {plain_key(key): key for key in files}
    family = recognised(stored.keys(), model_info.config.model_type, layers, what)
    depths = family.depths(stored.keys(), layers)
    config = read_json(folder / CONFIG)
    _agree(config, family, depths, layers, what)
    own = {
        f"layers.{depth}.{part}": key
        for depth in range(depths)
        for part, key in own_keys(family, depth, layers).items()
    }
    own |= {
        part.replace(".weight", ".bias"): bias
        for part, key in own.items()
        if (bias := key.replace(".weight", ".bias")) in stored
    }
    if lacking := sorted({key for key in own.values() if key not in stored}):
        raise ValueError(f"{what} (family {family.name}) lacks {', '.join(map(shown, lacking))}")
    originals = tuple(family.at(family.block, depth, layers) for depth in range(depths))
    blocks, ignored = _block_keys(stored, family, originals, {*own.values()})
    wanted = {*own.values(), *blocks.values()}
    deeper = tuple(family.at(family.block, depth, layers) for depth in range(depths, MANY) if family.most)
    unread = [key for key in stored if key not in wanted and key not in ignored and not key.startswith(deeper)]
    if unread := [key for key in unread if is_of_layers(key, layers)]:
        found = differences(that_nothing_reads=unread)
        raise ValueError(f"the multi-token layers of {what} are not read whole as family {family.name}: {found}")
    repeated = {key: original for key, original in ignored.items() if original}
    needed = {*wanted, *repeated, *(original for original in repeated.values() if original in stored)}
    fetch_files(place, sorted({files[stored[key]].name for key in needed}), revision)
    _compare(repeated, stored, files, what)
    read = _read({key: stored[key] for key in wanted}, files, what)
    tensors = _unpacked(read, config, what)
    return MtpCheckpoint(
        name,
        family,
        depths,
        {new: tensors[old] for new, old in own.items()},
        {new: tensors[old] for new, old in blocks.items() if old in tensors},
        originals,
        tuple(sorted(stored[key] for key in wanted)),
        tuple(sorted(stored[key] for key in ignored)),
    )


def _agree(config: Mapping[str, Any], family: Family, depths: int, layers: int, what: str) -> None:
    """Refuse a config that counts other depths than the checkpoint has; of some families one is used, however many."""
    inner = config.get("text_config")
    settings = {**(inner if isinstance(inner, Mapping) else {}), **config}
    name = next((name for name in COUNTS if isinstance(settings.get(name), int)), "")
    said = min(settings[name], family.most or settings[name]) if name else depths
    if depths < said:
        lacking = family.at(family.projection, depths, layers)
        raise ValueError(
            f"the config of {what} says {said} multi-token layers ({name}), and there is no {lacking}.weight"
        )
    if said < depths:
        raise ValueError(f"the config of {what} says {said} multi-token layers ({name}), and its files have {depths}")


def _block_keys(
    stored: Mapping[str, str], family: Family, originals: tuple[str, ...], own: set[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Keys of blocks, by `layers.{i}.` and the layer's names; and those that are ignored, with what they repeat."""
    found: dict[str, str] = {}
    ignored: dict[str, str] = {}
    output = "lm_head." if "lm_head.weight" in stored else "model.embed_tokens."
    for depth, start in enumerate(originals):
        for key in stored:
            rest = key.removeprefix(start)
            if not key.startswith(start) or key in own:
                continue
            if copied := next((part for part in family.copies if rest.startswith(part)), None):
                repeated = family.copies[copied].replace("lm_head.", output)
                ignored[key] = repeated and repeated + rest.removeprefix(copied)
                continue
            for old, new in family.renamed.items():
                rest = rest.replace(old, new) if rest.startswith(old) else rest
            found[f"layers.{depth}.{rest}"] = key
    return found, ignored


def _compare(repeated: Mapping[str, str], stored: Mapping[str, str], files: Mapping[str, Path], what: str) -> None:
    """Compare tensors with those of the target that they repeat, as far as these are there."""
    for copy, original in repeated.items():
        if original not in stored or not files[stored[original]].is_file():
            warn(f"{what} has {shown(copy)}, and no {shown(original)} to compare it with: the target's is used")
            continue
        ours, theirs = (_read({key: stored[key]}, files, what)[key] for key in (copy, original))
        if ours.shape != theirs.shape or not torch.equal(ours.to(theirs.dtype), theirs):
            raise ValueError(f"{what}: {shown(copy)} is unlike {shown(original)}, which mtp uses in its place")


def _read(keys: Mapping[str, str], files: Mapping[str, Path], what: str) -> dict[str, Tensor]:
    """The tensors of some keys, by plain keys; only the files that hold them are opened."""
    found: dict[str, Tensor] = {}
    for path in {files[key] for key in keys.values()}:
        found |= read_tensors(path, keys.values())
    if lacking := keys.values() - found.keys():
        raise ValueError(f"{what}: no file has {shown(min(lacking))}, which its index names")
    return {plain: found[key] for plain, key in keys.items()}


def _unpacked(tensors: Mapping[str, Tensor], config: Mapping[str, Any], what: str) -> dict[str, Tensor]:
    """Tensors in full precision: those that have scales for blocks are multiplied with them."""
    given = config.get("quantization_config")
    size = (given if isinstance(given, Mapping) else {}).get("weight_block_size") or (BLOCK, BLOCK)
    found = {}
    for key, tensor in tensors.items():
        scale = tensors.get(f"{key}{SCALE}")
        if scale is not None:
            if tuple(scale.shape) != tuple(ceil(n / b) for n, b in zip(tensor.shape, size, strict=False)):
                raise ValueError(f"{what}: {shown(key)} {list(tensor.shape)} has scales of {list(scale.shape)}, and "
                                 f"its blocks have {list(size)}")  # fmt: skip
            rows, columns = tensor.shape
            wide = scale.float().repeat_interleave(size[0], 0)[:rows].repeat_interleave(size[1], 1)[:, :columns]
            tensor = tensor.float() * wide
        elif not key.endswith(SCALE) and (not tensor.is_floating_point() or tensor.element_size() == 1):
            raise ValueError(
                f"{what}: {shown(key)} is quantised ({str(tensor.dtype).removeprefix('torch.')}) in a form that is not "
                "read; name a checkpoint with these layers in full precision, as in drafter=<folder or hub name>"
            )
        if not key.endswith(SCALE):
            found[key] = tensor
    return found
