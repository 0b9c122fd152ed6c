"""Moving the keys of accepted nodes behind the committed ones, in the slots of all layers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.core import kernels
from mmspec.hosts.slot_layer import SlotLayer


def move_accepted(layers: Sequence[SlotLayer], length: Tensor, path: Tensor, count: Tensor) -> None:
    """Put accepted nodes into the slots behind the root.

    Args:
        layers: The layers that hold keys.
        length: `[batch]` int64: committed units; the root's slot follows them.
        path: `[batch, depth]`: node ids after the root, -1 padded.
        count: `[batch]` int64: kept nodes, root included; the others of `path` stay where they are.
    """
    if _moved_at_once(layers, length, path, count):
        return
    order = torch.arange(1, path.shape[1] + 1, device=path.device)
    destination = length[:, None] + order
    kept = order < count[:, None]
    source = torch.where(kept, length[:, None] + path.clamp(min=0), destination)
    for layer in layers:
        layer.write(destination, *layer.read(source))


def _moved_at_once(layers: Sequence[SlotLayer], length: Tensor, path: Tensor, count: Tensor) -> bool:
    """Move all layers' keys in one launch, where a kernel can; whether it did.

    Not inside traced code, which would not know what the kernel writes.
    """
    states = [states for layer in layers for states in (layer.keys, layer.values)]
    if not kernels.available(path.device) or any(each.device != path.device for each in states):
        return False
    if not states or torch.compiler.is_compiling():
        return False
    from mmspec.core.kernels import commit

    commit.move_accepted(states, length, path, count)
    return True
