"""`llmcad`: a smaller model's tree, which ends where the smaller model is no longer sure.

LLMCad (Xu et al., arXiv 2309.04255). The branch pacer gives every branch x its share of the M nodes, by C_x, the
product of its probabilities: of all branches, the one that is furthest behind its share, M · C_x / Σ C - T_x with T_x
its units, goes on first (max–min). Here a pass of the small model goes on with a whole level, so that those branches go
on that are behind their share at all, the likeliest if they are too many. The target verifies once T_c, the product of
the best branch, is below the threshold α. After a round, α is halved if the whole longest branch was accepted; if c of
its n units were, α is divided by T_c^((n - c) / n), the product of as many of its units as were refused, if all are
equally likely: so more refusals, and less likely ones, end drafts earlier.
In the text that could be read the formula of α is damaged: its T_c is what the words beside it say, and the first α is
ours. A target that is larger than the memory is one whose layers accelerate loads for every pass
(`accelerate.disk_offload`, or a `device_map` with `max_memory`); drafting on while they load, in a process of its own,
is the method `pearl`, whose drafts are chains.
Guarantee: `match`'s.
Knobs: `k` (most levels); `nodes` and `width` as of `draft-tree`; `threshold` (the first α: higher ends drafts earlier).
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.drafters.draft_model import DraftModelMemory
from mmspec.core.drafters.shapes import Frontier, Level, Rerank
from mmspec.core.noise import DraftNoise
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.kits.text.small_model import SmallModelDrafter, SmallModelOptions
from mmspec.registry.options import option
from mmspec_text.specs import LLMCAD

LEAST, MOST = 1e-6, 0.99
"""Between which α stays."""


@dataclass(frozen=True)
class FallsBack(Rerank):
    """A tree of point masses, whose branches have their shares, until a row's best node is too unlikely to go on.

    T_c is the largest product of probabilities that a node of the last level has; no level follows once it is below the
    row's threshold. A level is drawn before it is known whether another one follows; so the units of a draft decide
    where it ends, which biases rules that use their distribution.
    """

    threshold: Tensor | float = 0.0  # `[batch]`, or a number: least T_c behind which another level is drafted

    ends = True

    def level(self, frontier: Frontier, depth: int) -> Level:
        carried, going = (None, None) if frontier.carried is None else frontier.carried
        level = super().level(replace(frontier, carried=carried), depth)
        paced = behind_share(frontier.score, self.nodes, depth - 1)
        valid = level.valid & paced.gather(1, level.parent.expand_as(level.units))
        valid = valid if going is None else valid & going[:, None]
        score = torch.where(valid, level.score, -torch.inf)
        best = score.amax(1).exp()
        return replace(level, score=score, valid=valid, carried=(level.carried, best >= self.threshold))

    def ended(self, level: Level) -> bool:
        """True if the draft of every row has ended."""
        return not bool(level.carried[1].any())


@dataclass(frozen=True)
class LLMCadOptions(SmallModelOptions):
    """Options of `llmcad`."""

    threshold: Annotated[float, Field(gt=0, lt=1)] = option(
        0.01, "α at first: least probability of a branch behind which a draft goes on"
    )
    width: Annotated[int, Field(ge=1, le=64)] = option(3, "children of a node")
    nodes: Annotated[int, Field(ge=1, le=512)] = option(16, "nodes that are verified")


@dataclass
class LLMCadMemory(DraftModelMemory):
    """The drafter's memory of a call."""

    alpha: Tensor = field(default_factory=lambda: torch.zeros(0))  # `[batch]`: the threshold of each row


class LLMCad(SmallModelDrafter):
    """Drafts trees that end where the small model is unsure."""

    def __init__(self, options: LLMCadOptions = LLMCadOptions()) -> None:
        self._tree = FallsBack(None, options.width, options.nodes, threshold=options.threshold)
        super().__init__(options, LLMCAD.name, self._tree)

    def start(self, state: State, inputs: Any) -> LLMCadMemory:
        first = torch.full((state.rows,), self.options.threshold, device=state.emitted.device)
        return LLMCadMemory(**vars(super().start(state, inputs)), alpha=first)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        memory: LLMCadMemory = state.memory
        memory.shape = replace(self._tree, threshold=torch.where(state.done, 1.0, memory.alpha))
        return super().propose(state, k, noise)

    def observe(self, state: State, step: Step) -> None:
        super().observe(state, step)
        memory: LLMCadMemory = state.memory
        draft = step.draft
        if draft.score is None or draft.nodes == 1:  # nothing was drafted
            return
        depth = torch.where(draft.valid, draft.index.depth, 0)[:, 1:]  # without the root
        longest = depth.amax(1)
        best = torch.where(depth == longest[:, None], draft.score, -torch.inf).amax(1)
        memory.alpha = adapted(memory.alpha, longest, step.verdict.length, best)


def behind_share(score: Tensor, nodes: int, length: int) -> Tensor:
    """The branches that have fewer units than their share of `nodes`, M · C_x / Σ C - T_x > 0: `[batch, branch]` bool.

    `score` are log C, the products of their probabilities; all have T_x = `length` units.
    """
    return nodes * score.softmax(1) > length


def adapted(alpha: Tensor, longest: Tensor, accepted: Tensor, best: Tensor) -> Tensor:
    """The thresholds after a round that accepted so many units, all `[batch]`.

    `alpha` are those before, `longest` counts the units of the longest branch (0: nothing was drafted, and nothing
    changes), and `best` is log T_c.
    """
    refused = (longest - accepted) / longest.clamp(min=1)
    changed = torch.where(refused > 0, alpha * (-refused * best).exp(), 0.5 * alpha)
    return torch.where(longest > 0, changed, alpha).clamp(LEAST, MOST)
