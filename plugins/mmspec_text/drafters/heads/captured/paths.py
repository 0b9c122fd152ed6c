"""Captured drafts of heads that step along paths from the last feature alone: Medusa's, Hydra's, MLP speculators."""

from collections.abc import Callable

import torch
from torch import Tensor

from mmspec.core.noise import DraftNoise
from mmspec.core.state import State
from mmspec.core.types import Draft, TargetOutput
from mmspec_text.drafters.heads.captured.draft import CapturedDraft, Plan
from mmspec_text.drafters.heads.pathwise.walk import Walk


class PathDraft(CapturedDraft):
    """See the module; the call's memory has the last `feature`, `[batch, 1, width]`."""

    def __init__(self, plan: Plan, state: State) -> None:
        super().__init__(plan, state)
        with torch.inference_mode(False):
            self.feature = torch.zeros_like(state.memory.feature)

    def __call__(self, feature: Tensor, state: State, noise: DraftNoise) -> Draft:
        """Draft behind a feature, for the call that was loaded last."""
        self.feature.copy_(feature)
        return self.run(state, noise)

    def begun(self) -> tuple[TargetOutput, Callable[[Draft, int], TargetOutput]]:
        walk = Walk(self.plan.head, self.plan.head.rooted(self.feature, self.root[:, None]))
        return walk.output(), walk.grow
