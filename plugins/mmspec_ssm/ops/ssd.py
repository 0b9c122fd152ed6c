"""Mamba-2's state-space duality over a tree, in one pass (arXiv 2405.21060, § 6; trees: STree, arXiv 2505.14969).

h_i = e^{l_i} h_parent + Δ_i x_i ⊗ B_i with l_i = Δ_i A, y_i = h_i C_i + D x_i. With L the sum of l along a node's path,
Y = ((C Bᵀ) ⊙ W)(Δ x) + e^L ⊙ (C S) + D x, where W_ij = e^{L_i - L_j} for j on the path of i and 0 elsewhere, masked
before the exponential. For N nodes that takes N² (size + width) operations per head and no state of any node. Numbers
have the dtype of the branches, sums along paths are float64; outputs are float32. Where Triton runs, a tree of up to
`MOST` nodes is one launch (`mmspec_ssm.ops.tree_scan`).
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.core import kernels
from mmspec.hosts.tree_op import Branches
from mmspec_ssm.ops.roll import NodeInputs, roll_state, zero_state

MOST = 64
"""Nodes of a tree that the kernel takes, as in the paper of STree."""


class Ssd:
    """The tree operation for transformers' `mamba2_chunk_scan`."""

    kind: Literal["conv", "recurrent"] = "recurrent"

    def forward(
        self,
        branches: Branches,
        state: Tensor | None,
        /,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        *,
        chunk_size: int = 0,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        z: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Any, NodeInputs]:
        """Scan `hidden_states [batch, node, head, width]`; `B`, `C` are `[batch, node, group, size]`."""
        x, b, c = (each.to(branches.dtype) for each in (hidden_states, B, C))
        dt = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
        dt = F.softplus(dt) if dt_softplus else dt
        # Transformers' own steps (`mamba2_selective_state_update`) have no limits, and nodes are steps.
        dt = (dt.clamp(*dt_limit) if branches.reading else dt).to(branches.dtype)
        fed = NodeInputs(branches.path_sums(dt * A.to(branches.dtype)), x * dt[..., None], b)
        state = zero_state(fed) if state is None else state
        y = scan(branches, state, fed, c)
        y = y if D is None else y + D.to(branches.dtype)[:, None] * x
        y = (y if z is None else y * F.silu(z.to(branches.dtype))).float()
        return ((y, state) if return_final_states else y), fed

    commit = staticmethod(roll_state)


def scan(branches: Branches, state: Tensor, fed: NodeInputs, c: Tensor) -> Tensor:
    """The readout of every node's state with `c [batch, node, group, size]`: `[batch, node, head, width]`."""
    batch, nodes, groups, _ = c.shape
    covered = nodes <= MOST and branches.dtype == torch.float32 and not torch.compiler.is_compiling()
    if covered and kernels.available(c.device):
        from mmspec_ssm.ops import tree_scan

        return tree_scan.scan(branches, state, fed, c)
    heads, width, _ = state.shape[1:]
    # Heads of a group share b and c, which are not repeated. Products are `bmm`, since einsum's overhead is larger.
    asked = _rows(c)
    pairs = asked.bmm(fed.values.permute(0, 2, 3, 1).flatten(0, 1))[:, None]  # [batch × group, 1, i, j]
    weight = branches.path_decay(fed.total).permute(0, 3, 1, 2).reshape(batch * groups, -1, nodes, nodes)
    inside = (pairs * weight).flatten(0, 1).bmm(_rows(fed.keys)).view(batch, heads, nodes, width).transpose(1, 2)
    begun = asked.bmm(state.reshape(batch * groups, -1, state.shape[3]).mT)  # [batch × group, i, head × width]
    begun = begun.view(batch, groups, nodes, -1).transpose(1, 2).reshape(batch, nodes, heads, width)
    return (inside + begun * fed.total.to(branches.dtype).exp()[..., None]).contiguous()


def _rows(x: Tensor) -> Tensor:
    """`x [batch, node, group, width]` with one batch of all groups, for `bmm`: `[batch × group, node, width]`."""
    return x.transpose(1, 2).flatten(0, 1)
