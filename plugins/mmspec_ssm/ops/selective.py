"""Mamba's selective scan over a tree, level by level (arXiv 2312.00752, algorithm 2).

h_i = e^{Δ_i A} h_parent + Δ_i B_i x_i with a decay for every channel and entry of the state. This is no matrix product,
so the recurrence is computed level by level, and the states of a level are kept until the next one is done. A commit
needs none of them: the decay over a path is e^{A ΣΔ}, so that
S ← e^{A T_last} S + Σ_j e^{A (T_last - T_j)} Δ_j x_j B_j over the kept nodes, with T the sum of Δ along the path.
transformers' own function always begins at zero; this one begins at the state. Numbers have the dtype of the
branches, sums along paths are float64.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.hosts.tree_op import Branches, KeptNodes


@dataclass(frozen=True)
class ScanInputs:
    """The inputs of every node of a pass to the state."""

    total: Tensor  # Δ summed along the path, float64: `[batch, node, channel]`
    fed: Tensor  # Δ x: `[batch, node, channel]`
    b: Tensor  # `[batch, node, size]`
    a: Tensor  # `[channel, size]`, negative


class SelectiveScan:
    """The tree operation for transformers' `mamba_selective_scan`."""

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
        D: Tensor | None = None,
        z: Tensor | None = None,
        delta_bias: Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        **kwargs: Any,
    ) -> tuple[Any, ScanInputs]:
        """Scan `hidden_states [batch, channel, node]`; `B`, `C` are `[batch, size, node]`."""
        dt = dt if delta_bias is None else dt + delta_bias.to(dt.dtype)[..., None]
        dt = F.softplus(dt) if delta_softplus else dt
        step, x, b, c = (each.to(branches.dtype).transpose(1, 2) for each in (dt, hidden_states, B, C))
        a = A.to(branches.dtype)
        if state is None:
            state = x.new_zeros(*x.shape[::2], A.shape[1])
        y = scan(branches, state, step, step * x, a, b, c).transpose(1, 2)
        y = y if D is None else y + hidden_states * D[:, None]
        y = (y if z is None else y * F.silu(z)).to(hidden_states.dtype)
        return ((y, state) if return_last_state else y), ScanInputs(branches.path_sums(step), step * x, b, a)

    def commit(self, state: Tensor | None, stash: ScanInputs, kept: KeptNodes, /) -> Tensor:
        last = kept.last(stash.total)
        beyond = ~kept.mask.to(last.device)[..., None]
        gap = (last[:, None] - kept.take(stash.total)).to(stash.a.dtype).masked_fill(beyond, 0)
        fed = kept.take(stash.fed).masked_fill(beyond, 0)
        decayed = (gap[..., None] * stash.a).exp()  # [batch, step, channel, size]
        added = torch.einsum("bscn,bsc,bsn->bcn", decayed, fed, kept.take(stash.b))
        return added if state is None else (last.to(stash.a.dtype)[..., None] * stash.a).exp() * state + added


def scan(branches: Branches, state: Tensor, step: Tensor, fed: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The readout of every node's state with `c`: `[batch, node, channel]`.

    Of the `state [batch, channel, size]` before the root, `step` Δ and `fed` Δ x `[batch, node, channel]`, `a [channel,
    size]`, `b` and `c` `[batch, node, size]`.
    """
    if branches.levels is not None:
        return _by_level(branches.levels, state, step, fed, a, b, c)
    # Every row has its own tree: all nodes are computed at once, as often as the tree has levels.
    decay, added = (step[..., None] * a).exp(), fed[..., None] * b[:, :, None]
    above = branches.parent.to(step.device)
    at = above.clamp(min=0)[..., None, None].expand_as(added)
    states = decay * state[:, None] + added
    for _ in range(branches.index.deepest):
        parent = torch.where((above >= 0)[..., None, None], states.gather(1, at), state[:, None])
        states = decay * parent + added
    return torch.einsum("bncs,bns->bnc", states, c)


def _by_level(
    levels: list[tuple[Tensor, Tensor]], state: Tensor, step: Tensor, fed: Tensor, a: Tensor, b: Tensor, c: Tensor
) -> Tensor:
    out, states = torch.empty_like(fed), state[:, None]
    for nodes, parents in levels:
        decay = (step[:, nodes, :, None] * a).exp()
        states = decay * states[:, parents] + fed[:, nodes, :, None] * b[:, nodes, None]
        out[:, nodes] = torch.einsum("bncs,bns->bnc", states, c[:, nodes])
    return out
