"""Gated linear attention over a tree (GLA, arXiv 2312.06635).

S_i = e^{g_i} S_parent + k_i ⊗ v_i with a decay for every channel of the key, o_i = S_iᵀ q_i, queries scaled. With L the
sum of g along a node's path, o_i = Σ_j (Σ_c q_i[c] k_j[c] e^{L_i[c] - L_j[c]}) v_j + (q_i e^{L_i}) S over that path.
It has the arguments of flash-linear-attention's `chunk_gla`; no architecture of transformers calls it yet. Numbers have
the dtype of the branches, sums along paths are float64.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from mmspec.hosts.tree_op import Branches
from mmspec_ssm.ops.roll import NodeInputs, roll_state, zero_state


class GatedLinear:
    """The tree operation for flash-linear-attention's `chunk_gla`."""

    kind: Literal["conv", "recurrent"] = "recurrent"

    def forward(
        self,
        branches: Branches,
        state: Tensor | None,
        /,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        *,
        scale: float | None = None,
        **kwargs: Any,
    ) -> tuple[tuple[Tensor, Tensor], NodeInputs]:
        """Process `q`, `k`, `v` and log-decays `g` `[batch, node, head, width]`."""
        query = q.to(branches.dtype) * (q.shape[-1] ** -0.5 if scale is None else scale)
        fed = NodeInputs(branches.path_sums(g.float()), k.to(branches.dtype), v.to(branches.dtype))
        state = zero_state(fed) if state is None else state
        weighted = branches.path_decay(fed.total) * fed.keys[:, None]  # [batch, i, j, head, key]
        asked = torch.einsum("bihk,bijhk->bhij", query, weighted)
        read = torch.einsum("bihk,bhkv->bihv", query * fed.total.to(branches.dtype).exp(), state)
        out = read + torch.einsum("bhij,bjhv->bihv", asked, fed.values)
        return (out.to(q.dtype), state), fed

    commit = staticmethod(roll_state)
