"""A matrix state along the accepted path, for every operation whose nodes add an outer product to a decayed state.

S ← e^{L_last} S + Σ_j e^{L_last - L_j} k_j ⊗ v_j over the kept nodes j, where L is the log-decay summed along the path.
One product of matrices per head; the activations of a node are k + v numbers, its state would be k · v.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.hosts.tree_op import KeptNodes


@dataclass(frozen=True)
class NodeInputs:
    """What every node of a pass fed into its state; float32 but for the sums.

    Attributes:
        total: Log-decay summed along the path, the node's own included, float64: `[batch, node, head]`, or with a
            decay for every row of the state `[batch, node, head, key]`.
        keys: `[batch, node, head, key]`.
        values: `[batch, node, group, value]`; the heads of a group share them.
    """

    total: Tensor
    keys: Tensor
    values: Tensor


def roll_state(state: Tensor | None, fed: NodeInputs, kept: KeptNodes) -> Tensor:
    """The state `[batch, head, key, value]` after the kept nodes."""
    last = kept.last(fed.total)
    gap = (last[:, None] - fed.total).float()
    outside = kept.outside(gap.shape[1]).to(gap.device)
    # Nodes that are not kept weigh nothing: fewer operations than to take the others, and a commit is made of these.
    weight = gap.masked_fill(outside.reshape(*outside.shape, *(1,) * (gap.dim() - 2)), float("-inf")).exp()
    if weight.dim() == 3:
        weight, last = weight[..., None], last[..., None]
    keys = (fed.keys * weight).unflatten(2, (fed.values.shape[2], -1))
    added = _outer(keys, fed.values).flatten(1, 2)
    return added if state is None else torch.addcmul(added, last.float().exp()[..., None], state)


def _outer(keys: Tensor, values: Tensor) -> Tensor:
    """Sums over nodes of `keys [batch, node, group, head, key]` ⊗ `values [batch, node, group, value]`."""
    if values.shape[2] == 1:  # einsum's own work costs more than this product
        return torch.bmm(keys.flatten(2).mT, values[:, :, 0]).unflatten(1, keys.shape[2:])
    return torch.einsum("bsghk,bsgv->bghkv", keys, values)


def zero_state(fed: NodeInputs) -> Tensor:
    """The state before anything was fed: zero, `[batch, head, key, value]`."""
    batch, _, heads, key = fed.keys.shape
    return fed.keys.new_zeros(batch, heads, key, fed.values.shape[-1])
