"""Draft the actions of frames that are made jointly: known actions where there are any, else a drafter's guesses."""

from typing import Any

import torch
from torch import Tensor

from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Drafter, Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec_video.targets.frames import FramesTarget


class KnownActions:
    """A drafter of chains. Rows whose next frame is available draft no further: their next frames are made jointly once
    one is needed.

    Args:
        drafter: Drafts a chain where no action is known.

    Attributes:
        known: `[row, n]`: known actions after the root.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.offers, self.needs = drafter, drafter.offers, drafter.needs
        self.known: Tensor | None = None
        self.target: FramesTarget | None = None

    def bind(self, target: Target) -> None:
        assert isinstance(target, FramesTarget)
        self.drafter.bind(target)
        self.target = target

    def width(self, k: int) -> int:
        return self.drafter.width(k)

    def start(self, state: State, inputs: Any) -> Any:
        return self.drafter.start(state, inputs)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        assert self.target is not None
        if self.known is not None and self.known.shape[1]:
            units = self.known[:, :k]
        else:
            units = self.drafter.propose(state, k, noise).units
        ready = self.target.ready(state.cache)
        ahead = torch.where(ready > 0, ready - 1, k)
        return Draft.chain(units, valid=torch.arange(units.shape[1], device=units.device) < ahead[:, None])

    def observe(self, state: State, step: Step) -> None:
        self.drafter.observe(state, step)
