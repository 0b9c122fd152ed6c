"""Heads whose units stand on the grid of a picture: LANTERN's drafters of LlamaGen (Jang et al., arXiv 2410.03355).

They are heads of EAGLE-1 that turn queries and keys as their target does: half of a head's pairs with the row, half
with the column; at positions of the condition queries and keys vanish. A row stands where its unit stands, one place
behind its feature. LlamaGen turns neighbouring numbers; weights are stored for that, and ordered here for the turn of
the two halves of a head, which every other head of this family has. Scores do not change.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mmspec_text.drafters.heads.eagle.architecture import Architecture


class GridRotary(nn.Module):
    """Cosines and sines of rows, in the order of `turned`.

    Args:
        table: `[position, width / 2, 2]`: those of the target's positions.
    """

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table.float(), persistent=False)

    def forward(self, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Those of rows at `positions [batch, row]`; a row behind the picture, which nobody reads, stands on the last
        cell.
        """
        table: Tensor = self.table
        pairs = table[(positions + 1).clamp(max=len(table) - 1)].to(states.dtype)  # [batch, row, width / 2, 2]
        cosines, sines = pairs.unbind(-1)
        return torch.cat([cosines, cosines], -1), torch.cat([sines, sines], -1)


def by_halves(weights: Mapping[str, Tensor], a: Architecture) -> dict[str, Tensor]:
    """Weights with the numbers of every head of queries and keys in halves: the first ones of all pairs, then the
    second ones.
    """
    ordered = dict(weights)
    for key, value in weights.items():
        for part, heads in (("self_attn.q_proj", a.heads), ("self_attn.k_proj", a.key_heads)):
            if part in key:
                pairs = value.unflatten(0, (heads, a.head_dim // 2, 2))
                ordered[key] = pairs.transpose(1, 2).flatten(0, 2).contiguous()
    return ordered
