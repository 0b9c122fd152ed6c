"""Kimi Delta Attention over a tree: the gated delta rule with a decay for every channel (arXiv 2510.26692).

The equations are those of `mmspec_ssm.ops.delta` with a vector L_i: the decay is inside the inner products, k_i·k_j
becomes Σ_c k_i[c] k_j[c] e^{L_i[c] - L_j[c]}, and it decays the rows of the state. The factored form
(k e^L)(k e^{-L})ᵀ overflows for strong gates, so the differences are computed, which is affordable for the nodes of a
draft. Numbers are float32, sums along paths float64.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from mmspec.hosts.tree_op import Branches
from mmspec_ssm.ops.delta import corrections, prepared
from mmspec_ssm.ops.roll import NodeInputs, roll_state, zero_state


class ChannelDelta:
    """The tree operation for transformers' `chunk_kimi_delta_attention`."""

    kind: Literal["conv", "recurrent"] = "recurrent"

    def forward(
        self,
        branches: Branches,
        state: Tensor | None,
        /,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs: Any,
    ) -> tuple[tuple[Tensor, Tensor], NodeInputs]:
        """Process `query`, `key`, `value` and log-decays `g` `[batch, node, head, width]`, and `beta`
        `[batch, node, head]`.
        """
        q, k, v = prepared(query, key, value, use_qk_l2norm_in_kernel)
        total = branches.path_sums(g.float())
        state = zero_state(NodeInputs(total, k, v)) if state is None else state
        weighted = branches.path_decay(total) * k[:, None]  # [batch, i, j, head, key]
        alike, asked = (torch.einsum("bihk,bijhk->bhij", left, weighted) for left in (k, q))
        seen, read = (torch.einsum("bihk,bhkv->bihv", left * total.float().exp(), state) for left in (k, q))
        delta = corrections(alike, beta.float(), v - seen)
        out = read + torch.einsum("bhij,bjhv->bihv", asked, delta)
        return (out.to(query.dtype), state), NodeInputs(total, k, delta)

    commit = staticmethod(roll_state)
