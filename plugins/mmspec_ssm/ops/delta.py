"""The gated delta rule over a tree: one triangular system per head.

Gated DeltaNet (arXiv 2412.06464) has one decay per head, Kimi Delta Attention (arXiv 2510.26692) one per channel.

S_i = e^{g_i} S_parent + k_i ⊗ δ_i, δ_i = β_i (v_i - (e^{g_i} S_parent)ᵀ k_i), o_i = S_iᵀ q_i / √d. The δ of a node
depends on its ancestors': (I + T) δ = R with T_ij = β_i e^{L_i - L_j} k_i·k_j for ancestors j of i, L the sum of g on
the path, and R_i = β_i (v_i - e^{L_i} Sᵀ k_i). Parents precede children, so that the matrix is unit lower triangular
and one solve gives every δ exactly. A node's δ is the same on every path through it, so a commit adds k_j ⊗ δ_j of the
kept nodes. With a decay per channel, L_i is a vector: k_i·k_j becomes Σ_c k_i[c] k_j[c] e^{L_i[c] - L_j[c]}, and the
decay applies to the rows of the state. The factored form (k e^L)(k e^{-L})ᵀ would overflow for strong gates.
Numbers have the dtype of the branches, sums along paths are float64.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from mmspec.hosts.tree_op import Branches
from mmspec_ssm.ops.roll import NodeInputs, roll_state, zero_state

EPSILON = 1e-6  # epsilon of the norm of queries and keys, as in flash-linear-attention


class GatedDelta:
    """The tree operation for transformers' `torch_chunk_gated_delta_rule` and `chunk_kimi_delta_attention`."""

    kind: Literal["conv", "recurrent"] = "recurrent"

    def forward(
        self,
        branches: Branches,
        state: Tensor | None,
        /,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        g: Tensor,
        beta: Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs: Any,
    ) -> tuple[tuple[Tensor, Tensor], NodeInputs]:
        """Process `query`, `key` `[batch, node, key head, width]`; `value` `[batch, node, head, width]`.

        Log-decays `g` are `[batch, node, head]`, or `[batch, node, head, width]` for a decay per channel; `beta` is
        `[batch, node, head]`.
        """
        q, k, v = prepared(query, key, value, use_qk_l2norm_in_kernel, branches.dtype)
        total = branches.path_sums(g.float())
        state = zero_state(NodeInputs(total, k, v)) if state is None else state
        decay, since_root = branches.path_decay(total), total.to(branches.dtype).exp()
        if g.dim() == 3:
            decay, since_root = decay.permute(0, 3, 1, 2), since_root[..., None]  # [batch, head, i, j]
            alike, asked = (torch.einsum("bihk,bjhk->bhij", left, k) * decay for left in (k, q))
        else:
            decayed = decay * k[:, None]  # [batch, i, j, head, key]
            alike, asked = (torch.einsum("bihk,bijhk->bhij", left, decayed) for left in (k, q))
        seen, read = (torch.einsum("bihk,bhkv->bihv", left * since_root, state) for left in (k, q))
        delta = corrections(alike, beta.to(branches.dtype), v - seen)
        out = read + torch.einsum("bhij,bjhv->bihv", asked, delta)
        return (out.to(query.dtype), state), NodeInputs(total, k, delta)

    commit = staticmethod(roll_state)


def prepared(
    query: Tensor, key: Tensor, value: Tensor, norm: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in `dtype`: normed if `norm`, queries scaled, queries and keys repeated to all heads."""
    q, k, v = query.to(dtype), key.to(dtype), value.to(dtype)
    if norm:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPSILON) for x in (q, k))
    times = v.shape[2] // k.shape[2]
    return q.repeat_interleave(times, 2) * q.shape[-1] ** -0.5, k.repeat_interleave(times, 2), v


def corrections(alike: Tensor, beta: Tensor, missing: Tensor) -> Tensor:
    """δ of every node: `[batch, node, head, width]`.

    `alike [batch, head, i, j]` is decayed k_i·k_j, 0 where j is not on the path of i; `beta` is `[batch, node, head]`;
    `missing [batch, node, head, width]` is v_i minus the readout of the state before the root with k_i.
    """
    rate = beta.transpose(1, 2)[..., None]
    # The solver does not read the diagonal; it takes it as 1.
    solved = torch.linalg.solve_triangular(
        rate * alike, rate * missing.transpose(1, 2), upper=False, unitriangular=True
    )
    return solved.transpose(1, 2)
