"""The commit of operations whose nodes add an outer product to a decayed matrix state.

S ← e^{L_last} S + Σ_j e^{L_last - L_j} k_j ⊗ v_j over the kept nodes j, where L is the log-decay summed along the path.
It is one matrix product per head. The stash of a node has k + v numbers; a state per node would have k · v.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.hosts.tree_op import KeptNodes


@dataclass(frozen=True)
class NodeInputs:
    """The inputs of every node of a pass to the state, in the dtype of its branches except `total`."""

    # The log-decay summed along the path, the node's own included, float64: `[batch, node, head]`, or with a decay for
    # every row of the state `[batch, node, head, key]`
    total: Tensor
    keys: Tensor  # `[batch, node, head, key]`
    values: Tensor  # `[batch, node, group, value]`; the heads of a group share them


def roll_state(state: Tensor | None, fed: NodeInputs, kept: KeptNodes) -> Tensor:
    """The state `[batch, head, key, value]` after the kept nodes."""
    last = kept.last(fed.total)
    gap = (last[:, None] - fed.total).to(fed.keys.dtype)
    outside = kept.outside(gap.shape[1]).to(gap.device)
    # Nodes that are not kept get weight 0, which takes fewer operations than to gather the others.
    weight = gap.masked_fill_(outside.reshape(*outside.shape, *(1,) * (gap.dim() - 2)), float("-inf")).exp_()
    if weight.dim() == 3:
        weight, last = weight[..., None], last[..., None]
    keys = (fed.keys * weight).unflatten(2, (fed.values.shape[2], -1))
    added = _outer(keys, fed.values).flatten(1, 2)
    return added if state is None else added.addcmul_(last.to(added.dtype).exp()[..., None], state)


def _outer(keys: Tensor, values: Tensor) -> Tensor:
    """Sums over nodes of `keys [batch, node, group, head, key]` ⊗ `values [batch, node, group, value]`."""
    if values.shape[2] == 1:  # here einsum's overhead is larger than the product
        return torch.bmm(keys.flatten(2).mT, values[:, :, 0]).unflatten(1, keys.shape[2:])
    return torch.einsum("bsghk,bsgv->bghkv", keys, values)


def zero_state(fed: NodeInputs) -> Tensor:
    """The state before the first unit: zero, `[batch, head, key, value]`."""
    batch, _, heads, key = fed.keys.shape
    return fed.keys.new_zeros(batch, heads, key, fed.values.shape[-1])
