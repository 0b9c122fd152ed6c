"""A world that can be played in the browser: a pipeline, the first frames of walks, and the ways to make its frames."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.api.pipeline import Pipeline
from mmspec.shipped import asset
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.pipeline import NextFramePipeline
from mmspec_video.recorded import TOUR_CLIP, recorded

BETWEEN = 12
"""Frames of the tour between two beginnings: one a court."""
DEEPEST = 4
"""Most actions that are guessed ahead."""


@dataclass(frozen=True)
class World:
    name: str  # its name on the page
    pipe: NextFramePipeline  # its pipeline, whose modules all walks share
    beginnings: Tensor  # `[beginning, 3, height, width]` in [0, 1]: first frames of walks, by their seeds
    tour: list[int]  # numbers of the actions of the walk by itself, from the first beginning on
    ahead: Mapping[str, Any]  # the method that is compared with plain decoding, and its arguments

    @classmethod
    def shipped(cls, name: str) -> "World":
        """A world of `mmspec/…`, with the recorded tour that lies beside it."""
        pipe = Pipeline.from_pretrained(f"mmspec/{name}", method="plain")
        codes = isinstance(pipe.transformer, TokenWorldModel)
        ahead = {"method": "frame-gs-sjd", "k": 32} if codes else {"method": "branch-prediction"}
        clips = recorded([asset(name)], TOUR_CLIP)
        return cls(name, pipe, (clips.frames[0, ::BETWEEN] + 1) / 2, clips.actions[0].tolist(), ahead)

    @property
    def actions(self) -> list[str]:
        return list(self.pipe.config.actions)

    @property
    def columns(self) -> int | None:
        """Codes in a row of a frame; None where frames are no codes."""
        model = self.pipe.transformer
        return model.config.columns if isinstance(model, TokenWorldModel) else None

    def pipes(self, depth: int) -> dict[str, NextFramePipeline]:
        """Two pipelines over the same modules, by the names of their methods; where frames are denoised, one guesses
        `depth` actions ahead.
        """
        config, parts = self.pipe.config, self.pipe.components
        how = {"k": depth, **self.ahead}
        found = {}
        for name, arguments in (("plain", {"method": "plain"}), (how["method"], how)):
            pipe = NextFramePipeline(**parts, actions=config.actions, fps=config.fps).use(**arguments)
            pipe.set_progress_bar_config(disable=True)
            found[name] = pipe
        return found
