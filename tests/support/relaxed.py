"""The exact distribution of a relaxed rule's unit at one node, by loops over the vocabulary in float64.

A draft x ~ q is kept with probability a(x) = min(1, P(G_x) / Q_x); a refused one leaves norm((p - q)+), or, with the
mass of its group moved onto it first, norm((p' - q)+). A point mass is a one-hot q.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClosedForm:
    """A relaxed rule at one node."""

    distribution: Tensor  # probabilities of the emitted unit, `[vocab]`
    tv: float  # their total variation from p
    excess_acceptance: float  # probability that the draft is accepted, minus that of rejection sampling


def outcome(
    p: Tensor,
    q: Tensor,
    groups: Sequence[set[int]],
    *,
    by_group: bool,
    paper: bool = False,
    near: Sequence[set[int]] | None = None,
) -> ClosedForm:
    """The rule at one node, in closed form.

    Args:
        p: The target's distribution, `[vocab]`.
        q: The draft's distribution.
        groups: The group of every unit, which contains the unit.
        by_group: Whether Q is q(G) instead of q(x).
        paper: The mass of a group is moved onto its unit before the residual is taken.
        near: The released residual: what is left out with a unit that has a group.
    """
    p, q = p.double(), q.double()
    distribution, excess_acceptance = torch.zeros_like(p), 0.0
    for x, members in enumerate(groups):
        if q[x] <= 0:
            continue
        group = sorted(members)
        mass = p[group].sum()
        chance = float((mass / (q[group].sum() if by_group else q[x])).clamp(max=1))
        distribution[x] += q[x] * chance
        distribution += q[x] * (1 - chance) * _left(p, q, x, group, paper, near)
        excess_acceptance += float(q[x] * chance - torch.minimum(p[x], q[x]))
    return ClosedForm(distribution, float((distribution - p).abs().sum() / 2), excess_acceptance)


def tree_outcome(
    p: Tensor,
    children: Sequence[int],
    groups: Callable[[Tensor], Sequence[set[int]]],
    *,
    paper: bool = False,
    near: Sequence[set[int]] | None = None,
) -> ClosedForm:
    """A node with several children, tried in turn, each as a point mass under what the earlier ones left.

    Args:
        p: The target's distribution, `[vocab]`.
        children: Their units, in their order.
        groups: The group of every unit under a distribution.
        paper: As in `outcome`.
        near: As in `outcome`.
    """
    rest, refused, distribution = p.double(), 1.0, torch.zeros_like(p, dtype=torch.float64)
    for x in children:
        group = sorted(groups(rest)[x])
        chance = min(1.0, float(rest[group].sum()))
        distribution[x] += refused * chance
        rest = _left(rest, torch.eye(len(p), dtype=torch.float64)[x], x, group, paper, near)
        refused *= 1 - chance
    distribution += refused * rest
    exact = float(p[sorted(set(children))].double().sum())
    return ClosedForm(distribution, float((distribution - p).abs().sum() / 2), 1 - refused - exact)


def _left(
    p: Tensor, q: Tensor, x: int, group: list[int], paper: bool, near: Sequence[set[int]] | None = None
) -> Tensor:
    moved = p.clone()
    if near is not None and len(group) > 1:
        rest, point = sorted(near[x]), float(q.max()) == 1
        q = q.clone()
        q[rest] = 0.0
        if point:
            moved[rest] = 0.0
    if paper:
        moved[group] = 0.0
        moved[x] = p[group].sum()
    left = (moved - q).clamp(min=0)
    return left / left.sum() if left.sum() > 0 else p


def ranked_groups(p: Tensor, size: int, difference: float, distance: float, codebook: Tensor) -> list[set[int]]:
    """Groups of GSD (arXiv 2508.07747): neighbours in the order of p that are near in probability and in embedding."""
    order, half = p.argsort(stable=True).tolist(), size // 2
    groups = []
    for x in range(len(p)):
        rank = order.index(x)
        around = order[max(0, rank - half) : max(0, rank + size - half)]
        groups.append({x} | {y for y in around if _near(p, x, y, difference, distance, codebook)})
    return groups


def _near(p: Tensor, x: int, y: int, difference: float, distance: float, codebook: Tensor) -> bool:
    apart = float((codebook[x] - codebook[y]).square().sum())
    return float((p[x] - p[y]).abs()) < difference and apart < distance


def nearest_groups(p: Tensor, k: int, delta: float, lam: float | None, codebook: Tensor) -> list[set[int]]:
    """Groups of LANTERN (arXiv 2410.03355): the nearest codes, as long as their mass stays within the bound."""
    groups = []
    for x in range(len(p)):
        bound = delta if lam is None else (lam - 1) * float(p[x])
        near = sorted(range(len(p)), key=lambda y: float((codebook[x] - codebook[y]).square().sum()))
        group, mass = {x}, 0.0
        for y in [y for y in near if y != x][:k]:
            mass += float(p[y])
            if mass > bound or bound == 0:
                break
            group.add(y)
        groups.append(group)
    return groups


def nearest_codes(codebook: Tensor, k: int) -> list[set[int]]:
    """The `k` codes that are nearest to each one, without itself."""
    far = torch.cdist(codebook, codebook).fill_diagonal_(torch.inf)
    return [set(row.argsort()[:k].tolist()) for row in far]
