"""Denoised frames, frame by frame, and frames made ahead while the player thinks.

The order of things is what a player feels: when an action comes, its frame is shown, at once if it was guessed; only
then are frames made for guesses of the next ones, one action deeper at a time, until the next action is there.
Where frames are made together (`nfd`), that happens when one has to be shown and is not ready, and at no other time: so
they do not depend on how long a player thinks.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from mmspec.core.decoder import Decoder, Pending
from mmspec.core.drafters.none import NoDraft
from mmspec.core.report import Report
from mmspec.core.state import State
from mmspec_video.deviation import FrameReport
from mmspec_video.playing.foreseen import Foreseen
from mmspec_video.targets.denoiser import StoppedError
from mmspec_video.targets.frames import FramesTarget, Opening


class FramePlay:
    """One call; its rows' players act in step.

    Args:
        decoder: Over a `FramesTarget`.
        frames: `[row, n, channel, height, width]` latents of the first frames.
        actions: `[row, n - 1]`: what led from one to the next.
        length: New frames wanted.
        seed: Of the noise: one, or one a row.

    Raises:
        ValueError: There are no first frames, or more than the model sees.
    """

    def __init__(
        self, decoder: Decoder, frames: Tensor, actions: Tensor, length: int, seed: int | Sequence[int]
    ) -> None:
        target: Any = decoder.target
        assert isinstance(target, FramesTarget)
        if not 1 <= frames.shape[1] <= target.most:
            raise ValueError(f"this model begins with 1 to {target.most} frames, not {frames.shape[1]}")
        self.decoder, self.target, self.length, self.seed = decoder, target, length, seed
        self.given, self.actions, self.shown = frames, actions[:, :0], 0
        assert target.vocab is not None
        unknown = torch.full_like(frames[:, :1, 0, 0, 0], target.vocab, dtype=torch.int64)
        self._before = torch.cat([unknown, actions], 1)
        self._plain = Decoder(target, None, decoder.rule, name=decoder.name)
        drafter = None if isinstance(decoder.drafter, NoDraft) else decoder.drafter
        # One decoder a depth: guesses go deeper step by step, and whoever acts early waits for one step only.
        self._ahead = [Decoder(target, drafter, decoder.rule, k=k + 1) for k in range(min(decoder.k, length))]
        self._foreseen: Foreseen | None = None
        self._shows = self._plain
        if target.joint is not None and drafter is not None and decoder.k:
            self._foreseen = Foreseen(drafter)
            self._shows, self._ahead = Decoder(target, self._foreseen, decoder.rule, k=decoder.k), []
        self._state: State | None = None
        self._pending: Pending | None = None

    @property
    def report(self) -> Report:
        """Counts and times; units are actions."""
        return self._report() if self._state is None else self._state.report

    @property
    def discarded(self) -> int:
        """Frames that were made and not shown; those that still stand ready count."""
        return 0 if self._state is None else self._state.cache.made - self.shown * len(self.given)

    def act(self, actions: Tensor) -> None:
        """The next actions `[row, n]`: each leads to one more frame."""
        self.actions = torch.cat([self.actions, actions], 1)

    def acted(self, frames: int) -> Tensor:
        """What led to the first `frames` new frames: `[row, frame]`."""
        return self.actions[:, :frames]

    def frame(self) -> Tensor:
        """Latents `[row, channel, height, width]` of the next frame, whose action is known.

        Raises:
            ValueError: It is not, or all frames were made.
        """
        if self.shown >= min(self.length, self.actions.shape[1]):
            raise ValueError(
                f"frame {self.shown} has no action yet" if self.shown < self.length else "no frame is left"
            )
        action = self.actions[:, self.shown : self.shown + 1]
        state = self._begin(action) if self._state is None else self._confirmed(self._state, action)
        if self._foreseen is not None:
            self._foreseen.known = self.actions[:, self.shown + 1 :]
        self._pending = self._shows.speculate(state)  # what stands ready is not made again
        self.shown += 1
        made = self._pending.scores.auxiliary
        assert made is not None
        state.report.emitted = self.shown * len(self.given)
        return made[:, 0]

    def ahead(self, until: Callable[[], bool] | None = None) -> None:
        """Make frames for guesses of the next action; nothing where it is known, or no frame is wanted.

        Args:
            until: Asked before every pass: whether the action is there. A frame that is not finished then is dropped.
        """
        state = self._state
        if state is None or self.actions.shape[1] > self.shown or self.shown >= self.length:
            return
        state.cache.until = until
        with suppress(StoppedError):
            for decoder in self._ahead:
                self._pending = decoder.speculate(state)
        state.cache.until = None

    def _begin(self, action: Tensor) -> State:
        opening = Opening(self.given, self._before, action[:, 0], self.seed)
        # One unit more than frames: the root of the last frame is not settled any more.
        state = self._state = self.decoder.start(opening, self.length + 1, seed=0)
        report = self._report()
        report.seconds, report.deviation = state.report.seconds, state.cache.deviation
        state.report = report
        return state

    def _report(self) -> FrameReport:
        return FrameReport(self.decoder.name, self.decoder.rule.exactness, rows=len(self.given))

    def _confirmed(self, state: State, action: Tensor) -> State:
        self.decoder.advance(state, truth=action, pending=self._pending)
        return state
