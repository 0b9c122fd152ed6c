"""`falls-back`: any shape, until a row's best node is too unlikely to go on behind it.

LLMCad (Xu et al., arXiv 2309.04255): T_c is the largest product of probabilities that a node of the last level has; the
draft is verified once T_c is below a threshold. Every row has its own threshold, which a drafter sets before a draft.
A level is drawn before it is known whether another one follows; so the units of a draft decide where it ends, which
biases rules that use their distribution: it wraps shapes whose nodes are point masses.
Knob: the threshold (higher ends drafts earlier).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.drafters.shapes.shape import Frontier, Level, Shape


@dataclass(frozen=True)
class FallsBack:
    """See the module."""

    shape: Shape  # the shape of the tree
    threshold: Tensor | float  # `[batch]`, or a number: least T_c behind which another level is drafted

    ends = True
    needs = frozenset({"rerank"})

    @property
    def offers(self) -> frozenset[str]:
        return self.shape.offers

    @property
    def widest(self) -> int:
        return self.shape.widest

    def levels(self, k: int) -> int:
        return self.shape.levels(k)

    def width(self, k: int) -> int:
        return self.shape.width(k)

    def fed(self, k: int) -> int:
        return self.shape.fed(k)

    def parents(self, k: int) -> tuple[int, ...] | None:
        return self.shape.parents(k)

    def level(self, frontier: Frontier, depth: int) -> Level:
        carried, going = (None, None) if frontier.carried is None else frontier.carried
        level = self.shape.level(replace(frontier, carried=carried), depth)
        valid = level.valid if going is None else level.valid & going[:, None]
        score = torch.where(valid, level.score, -torch.inf)
        best = score.amax(1).exp()
        return replace(level, score=score, valid=valid, carried=(level.carried, best >= self.threshold))

    def ended(self, level: Level) -> bool:
        """Whether the draft of every row has ended."""
        return not bool(level.carried[1].any())

    def choose(self, score: Tensor) -> Tensor | None:
        return self.shape.choose(score)
