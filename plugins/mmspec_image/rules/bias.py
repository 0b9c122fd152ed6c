"""The bias of a relaxed rule at a node, in closed form over the vocabulary.

A draft x ~ q is accepted with probability a(x); an exact rule accepts it with a*(x) = min(1, p / q). A rejected draft
is replaced by a draw from r = norm((p - q)+). With e = q (a - a*) the emitted unit has the distribution p + e - (Σ e)
r:

    α_relaxed - α_exact = Σ e    and    TV(out, p) = ½ ‖e - (Σ e) r‖₁.

A point mass is the case of a one-hot q. If a >= a* everywhere, e is positive only where q > p and r only where p > q,
so that TV = Σ e: the excess acceptance is the bias.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mmspec_image.rules.groups import Group, Groups

WIDEST = 4096
"""Most units per node for which e is computed, the likeliest of q; the others count as unaltered."""
AT_ONCE = 1 << 22
"""Most numbers in memory at one step over the vocabulary."""

Against = Callable[[Group, Tensor, Tensor], Tensor]
"""From a group, q and x to the denominator of the acceptance probability, `[batch, node, unit]`."""


def gain(p: Tensor, q: Tensor, x: Tensor, group: Group, against: Against) -> Tensor:
    """a - a* of the units `x [batch, node, unit]`, with a = min(1, P(G) / Q); p and q are `[batch, node, vocab]`."""
    tiny = torch.finfo(p.dtype).tiny
    relaxed = group.mass(p) / against(group, q, x).clamp(min=tiny)
    exact = p.gather(-1, x) / q.gather(-1, x).clamp(min=tiny)
    return relaxed.clamp(max=1) - exact.clamp(max=1)


def excess(p: Tensor, q: Tensor, groups: Groups, size: int, against: Against) -> Tensor:
    """e over the vocabulary: `[batch, node, vocab]`.

    Exact where q has mass on `WIDEST` units at most, as any vocabulary of that size has, and any distribution under
    top-k.

    Args:
        p: The target's distribution, `[batch, node, vocab]`.
        q: The draft's distribution.
        groups: The rule's groups.
        size: Size of a group, which decides how many units are computed at once.
        against: The rule's denominator.
    """
    rows, nodes, vocab = p.shape
    if vocab > WIDEST:
        units = q.topk(WIDEST, -1).indices
    else:
        units = torch.arange(vocab, device=p.device).expand(rows, nodes, -1)
    parts = units.split(max(1, AT_ONCE // (rows * nodes * size)), -1)
    gains = torch.cat([gain(p, q, x, groups(x), against) for x in parts], -1)
    return torch.zeros_like(p).scatter(-1, units, q.gather(-1, units) * gains)


def signed(e: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """½ ‖e - (Σ e) r‖₁ at every node: `[batch, node]`; all arguments are `[batch, node, vocab]`."""
    left = (p - q).clamp(min=0)
    total = left.sum(-1, keepdim=True)
    rest = torch.where(total > 0, left / total.clamp(min=torch.finfo(p.dtype).tiny), p)
    return (e - e.sum(-1, keepdim=True) * rest).abs().sum(-1) / 2
