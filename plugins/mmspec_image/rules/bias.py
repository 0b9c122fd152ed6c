"""Groups of interchangeable units, and the bias of a relaxed rule at a node, in closed form over the vocabulary.

A draft x ~ q is accepted with probability a(x); an exact rule accepts it with a*(x) = min(1, p / q). A rejected draft
is replaced by a draw from r = norm((p - q)+). With e = q (a - a*) the emitted unit has the distribution p + e - (Σ e)
r:

    α_relaxed - α_exact = Σ e    and    TV(out, p) = ½ ‖e - (Σ e) r‖₁.

A point mass is the case of a one-hot q. If a >= a* everywhere, e is positive only where q > p and r only where p > q,
so that TV = Σ e: the excess acceptance is the bias.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """The groups of some units."""

    ids: Tensor  # `[batch, node, unit, size]`, no unit twice; the unit itself comes first
    inside: Tensor  # bool of the same shape: which of `ids` belong to the group

    def mass(self, probs: Tensor) -> Tensor:
        """Probability of each group under `probs [batch, node, vocab]`: `[batch, node, unit]`."""
        return (probs.gather(-1, self.ids.flatten(2)).reshape(self.ids.shape) * self.inside).sum(-1)

    def members(self, vocab: int) -> Tensor:
        """Membership over the vocabulary, `[batch, node, vocab]` bool, where every node has the group of one unit."""
        ids, inside = self.ids[:, :, 0], self.inside[:, :, 0]
        count = torch.zeros(*ids.shape[:2], vocab, dtype=torch.uint8, device=ids.device)
        return count.scatter_add(-1, ids, inside.to(torch.uint8)) > 0


Groups = Callable[[Tensor], Group]
"""From units `[batch, node, unit]` of a round to their groups under the target's distribution."""


@runtime_checkable
class AmongWords(Protocol):
    """A target some of whose ids are codes, and the others words.

    Its `codebook [code, width]` has the entries of the codes alone; its `code_embeddings [code, width]` are the model's
    embeddings of them.
    """

    code_ids: Tensor  # `[code]`


@dataclass(frozen=True)
class Codes:
    """The vectors by which codes are compared, and whose they are; an id that is no code is like none."""

    vectors: Tensor  # `[code, width]`
    ids: Tensor  # `[code]`
    rows: Tensor  # `[vocab]`: the row of an id in `vectors`; -1: it is no code

    @staticmethod
    def of(target: Any, embeddings: bool = False) -> "Codes":
        """The entries of a target's codebook, or the model's embeddings of its codes if it has words beside them."""
        among_words = isinstance(target, AmongWords)
        if not among_words:
            every = torch.arange(len(target.codebook), device=target.codebook.device)
            return Codes(target.codebook, every, every)
        ids, vectors = target.code_ids, target.code_embeddings if embeddings else target.codebook
        rows = ids.new_full((target.vocab,), -1)
        rows[ids] = torch.arange(len(ids), device=ids.device)
        return Codes(vectors, ids, rows)

    def apart(self, x: Tensor, others: Tensor) -> Tensor:
        """Squared distances of units `x [..., 1]` and `others [..., size]`, in float32: as `others`."""
        one, more = self.rows[x], self.rows[others]
        far = (self.vectors[one].float() - self.vectors[more].float()).square().sum(-1)
        return torch.where((one >= 0) & (more >= 0), far, torch.inf)


def nearest(vectors: Tensor, k: int) -> Tensor:
    """The rows nearest to each row of `vectors [code, width]`, itself left out, `k` of them: `[code, k]`."""
    parts, whole = [], vectors.float()
    for first in range(0, len(whole), SOME):
        some = whole[first : first + SOME]
        own = torch.arange(first, first + len(some), device=whole.device)[:, None]
        parts.append(torch.cdist(some, whole).scatter(1, own, torch.inf).topk(k, largest=False).indices)
    return torch.cat(parts)


SOME = 512
"""Codes whose distances from all others are in memory together."""
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
    """e over the vocabulary: `[batch, node, vocab]`, of target `p` and draft `q` of that shape, and a rule's groups of
    so many units.

    Exact where q has mass on `WIDEST` units at most, as any vocabulary of that size has, and any distribution under
    top-k.
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
