"""How well a head drafts along a known text, depth by depth.

A proxy: it counts agreement with the target on text that is given, and no text that was decoded. What decides is the
acceptance length of a benchmark.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.training.losses import acceptance
from mmspec_text.training.along import along, over_own_ids, own_ids
from mmspec_text.training.teacher import Teacher


@dataclass(frozen=True)
class DepthMetrics:
    """What a head does at every depth of a draft.

    Attributes:
        right: How often its likeliest unit is the target's, given that it was at all depths before.
        accepted: α = Σ min(p, q), averaged over all rows: how often an exact rule takes a unit that was sampled.
        length: The simulated acceptance length of a greedy chain: 1 + Σ of the products of `right`.
    """

    right: tuple[float, ...]
    accepted: tuple[float, ...]
    length: float

    def rounded(self) -> "DepthMetrics":
        """To four places."""
        right, accepted = (tuple(round(value, 4) for value in values) for values in (self.right, self.accepted))
        return DepthMetrics(right, accepted, round(self.length, 4))


@torch.no_grad()
def depth_metrics(head: Any, teacher: Teacher, texts: Iterable[Tensor], depth: int) -> DepthMetrics:
    """Count on texts `[sequence, unit]`.

    Args:
        head: The head.
        teacher: Its target.
        texts: Batches of ids.
        depth: Units of a draft.

    Raises:
        ValueError: There is no text, or one that is shorter than a draft.
    """
    own, kept, reached, hits, alphas, rows = own_ids(head), 0, [0] * depth, [0] * depth, [0.0] * depth, 0
    for ids in texts:
        features, logits = teacher(ids)
        assert features is not None
        p, _ = over_own_ids(head, logits.softmax(-1), ids)
        likeliest, alive = logits.argmax(-1), None
        for step, scored in enumerate(along(head, features, ids, depth)):
            count, best = scored.shape[1], scored.argmax(-1)
            guess = (best if own is None else own[best]) == likeliest[:, step + 1 : step + 1 + count]
            alive = torch.ones_like(guess) if alive is None else alive
            reached[step] += int(alive.sum())
            alive = alive & guess
            hits[step] += int(alive.sum())
            alphas[step] += float(acceptance(scored, p[:, step + 1 : step + 1 + count]).sum())
        rows += count * len(ids)
        kept += 1
    if not kept:
        raise ValueError("there is no held-out text to count on")
    right = tuple(hit / all_ if all_ else 0.0 for hit, all_ in zip(hits, reached, strict=True))
    return DepthMetrics(right, tuple(alpha / rows for alpha in alphas), 1 + sum(hits) / rows)
