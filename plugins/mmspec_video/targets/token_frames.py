"""Frames as codes with actions as forced units between them, on the core's slot cache.

A draft window may extend across the end of a frame where the next action is known: a forced unit then costs no pass of
its own. The model never draws an action.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts.guidance import GuidedCache, OneShapeTarget
from mmspec.kits.pictures.conditions import Condition
from mmspec.kits.pictures.raster import Raster
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.specs import TOKEN_FRAMES


@dataclass(frozen=True)
class TokenPrompt:
    """First frames and the actions after them."""

    frames: Tensor  # `[row, n, cell]` int64 codes; `n` is at least 1
    actions: Tensor  # `[row, n]` int64: the action after each frame; the last one leads to the first new frame


class TokenFramesTarget(OneShapeTarget):
    offers = TOKEN_FRAMES.offers

    def __init__(self, model: TokenWorldModel) -> None:
        self.model = model
        self.vocab: int | None = model.config.vocab_size + model.config.actions
        self.context = model.context
        self.period = model.period
        self.columns = model.config.columns
        self.raster = Raster(model, model.logits)

    def _begin(self, inputs: TokenPrompt, limit: int, width: int, fixed: bool = False) -> Prefill:
        units = self.units(inputs)
        if units.shape[1] + limit > self.context:
            given, most = inputs.frames.shape[1], self.model.config.frames
            raise ValueError(
                f"this model sees {most} frames at once: {given} given ones and {limit} new units are more than its "
                f"{self.context} units"
            )
        cache, passed = self.raster.start(Condition(units, guided=False), limit, width, fixed)
        prefill = Prefill(cache, cache.output(passed.scores), units, torch.zeros_like(units[:, 0]))
        return self.raster.begun(cache, prefill)

    def units(self, prompt: TokenPrompt) -> Tensor:
        """The prompt as a sequence `[row, n · period]`."""
        actions = prompt.actions[..., None] + self.model.config.vocab_size
        return torch.cat([prompt.frames, actions], -1).flatten(1)

    def verify(self, cache: GuidedCache, draft: Draft, first: int = 0) -> TargetOutput:
        return cache.output(self.raster.verify(cache, draft, first).scores)

    @torch.inference_mode()
    def commit(self, cache: GuidedCache, path: Tensor, count: Tensor) -> None:
        cache.commit(path, count)

    def truncate(self, cache: GuidedCache, length: Tensor) -> None:
        cache.slots.set_length(length)
