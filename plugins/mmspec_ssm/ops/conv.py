"""Causal depthwise convolution along the paths of a tree (STree, arXiv 2505.14969, § 3.3).

A node's window has `width` inputs: the node's, its ancestors', and, before the root, the state's. The
state is the last `width` inputs of the row, as in transformers (a window reads the last `width - 1` of them).
A commit keeps the last `width` of the state's and the accepted inputs.

Sums of `width` products have one order wherever a node and its window lie, so that float32 suffices for them in calls
of one shape, too.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from transformers.activations import ACT2FN

from mmspec.hosts.tree_op import Branches, KeptNodes


class Convolution:
    """The tree operation for transformers' `causal_conv1d_fn`."""

    kind: Literal["conv", "recurrent"] = "conv"

    def forward(
        self,
        branches: Branches,
        state: Tensor | None,
        /,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Convolve `hidden_states [batch, channel, node]` with `weight [channel, width]`."""
        batch, channels, _ = hidden_states.shape
        width = weight.shape[-1]
        before = hidden_states.new_zeros(batch, channels, width) if state is None else state
        inputs = torch.cat([before, hidden_states], 2)
        columns = branches.columns(width).to(inputs.device).flatten(1)[:, None].expand(batch, channels, -1)
        # The window is the third axis, not the last: sums over it run along the nodes, several times as fast.
        window = inputs.gather(2, columns).view(batch, channels, width, -1)
        out = (window.float() * weight.flip(-1).float()[..., None]).sum(2)
        if bias is not None:
            out += bias.float()[:, None]
        if activation is not None:
            out = ACT2FN[activation](out)
        return out.to(hidden_states.dtype), (inputs, before)

    def commit(self, state: Tensor | None, stash: tuple[Tensor, Tensor], kept: KeptNodes, /) -> Tensor:
        inputs, before = stash
        columns = kept.columns(before.shape[2]).to(inputs.device)
        return inputs.gather(2, columns[:, None].expand(-1, inputs.shape[1], -1))
