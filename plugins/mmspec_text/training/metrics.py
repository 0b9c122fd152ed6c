"""How well a head drafts along a known text, depth by depth.

A proxy: it counts agreement with the target on text that is given, and no text that was decoded. What decides is the
acceptance length of a benchmark.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from mmspec.training.losses import acceptance
from mmspec_text.drafters.heads.unroll import along
from mmspec_text.training.batch import Batch
from mmspec_text.training.head_loss import over_own_ids, own_ids
from mmspec_text.training.teacher import Teacher


@dataclass(frozen=True)
class DepthMetrics:
    """What a head does at every depth of a draft."""

    right: tuple[float, ...]  # how often its likeliest unit is the target's, given that it was at all depths before
    # α = Σ min(p, q), averaged over the rows that count: how often an exact rule takes a sampled unit
    accepted: tuple[float, ...]
    length: float  # the simulated acceptance length of a greedy chain: 1 + Σ of the products of `right`

    def rounded(self) -> "DepthMetrics":
        """To four places."""
        right, accepted = (tuple(round(value, 4) for value in values) for values in (self.right, self.accepted))
        return DepthMetrics(right, accepted, round(self.length, 4))


@torch.no_grad()
def depth_metrics(head: Any, teacher: Teacher, texts: Iterable[Batch], depth: int) -> DepthMetrics:
    """Count on texts, behind the units that count there.

    Raises:
        ValueError: There is no text, one that is shorter than a draft, or nothing counts.
    """
    own, reached, hits, alphas, rows = own_ids(head), [0] * depth, [0] * depth, [0.0] * depth, [0] * depth
    for text in texts:
        features, logits = teacher(text.ids)
        assert features is not None
        p, _ = over_own_ids(head, logits.softmax(-1), text.ids)
        likeliest, alive = logits.argmax(-1), None
        for step, scored in enumerate(along(head, features, text.ids, depth)):
            here, best = slice(step + 1, step + 1 + scored.shape[1]), scored.argmax(-1)
            counted = text.counted[:, here]
            alive = counted if alive is None else alive & counted
            reached[step] += int(alive.sum())
            alive = alive & ((best if own is None else own[best]) == likeliest[:, here])
            hits[step] += int(alive.sum())
            alphas[step] += float((acceptance(scored, p[:, here]) * counted).sum())
            rows[step] += int(counted.sum())
    if not rows or not rows[0]:
        raise ValueError("there is no held-out text to count on")
    right = tuple(hit / all_ if all_ else 0.0 for hit, all_ in zip(hits, reached, strict=True))
    accepted = tuple(alpha / all_ if all_ else 0.0 for alpha, all_ in zip(alphas, rows, strict=True))
    return DepthMetrics(right, accepted, 1 + sum(hits) / rows[0])
