"""Token frames, frame by frame; actions may be known long before they are needed, or only when the frame is seen.

A sequence ends where the model's context does. Then the latest frames begin a new one: which ones, the frame's number
says, not the method, so that every method makes the same frames. Noise belongs to a unit's number in the whole clip.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.noise import Round, Source
from mmspec.core.offset_noise import OffsetSource
from mmspec.core.philox import PhiloxSource
from mmspec.core.report import Report
from mmspec.core.state import State
from mmspec.core.warp import Warp
from mmspec_video.targets.token_frames import Clip, TokenFramesTarget


class TokenPlay:
    """One call.

    Args:
        decoder: Over a `TokenFramesTarget`.
        frames: `[row, n, cell]` codes of the first frames.
        actions: `[row, n - 1]`: what led from one to the next.
        length: New frames wanted.
        seed: One, or one a row.
        warp: How codes are drawn.

    Attributes:
        report: Counts and times.

    Raises:
        ValueError: There are no first frames, or more than leave room for a new one.
    """

    def __init__(
        self,
        decoder: Decoder,
        frames: Tensor,
        actions: Tensor,
        length: int,
        seed: int | Sequence[int],
        warp: Warp | None = None,
    ) -> None:
        self.decoder, self.length, self.seed = decoder, length, seed
        target = decoder.target
        assert isinstance(target, TokenFramesTarget)
        self.target, self.most = target, target.model.config.frames
        if not 1 <= frames.shape[1] < self.most:
            raise ValueError(f"this model begins with 1 to {self.most - 1} frames, not {frames.shape[1]}")
        self.frames, self.actions = frames, actions
        self.given = frames.shape[1]
        self.warp = warp if warp is not None else Warp()
        self.report = Report(method=decoder.name, exactness=decoder.rule.exactness, rows=len(frames))
        self._state: State | None = None
        self._first = 0  # number of the first frame of the sequence at hand, and of its first new one
        self._fresh = 0
        self._emitted = 0

    @property
    def shown(self) -> int:
        """New frames that were made."""
        return self.frames.shape[1] - self.given

    def act(self, actions: Tensor) -> None:
        """The next actions `[row, n]`: each leads to one more frame."""
        self.actions = torch.cat([self.actions, actions], 1)
        if self._state is not None:
            self._let(self._state)

    def acted(self, frames: int) -> Tensor:
        """What led to the first `frames` new frames: `[row, frame]`."""
        return self.actions[:, self.given - 1 :][:, :frames]

    def frame(self) -> Tensor:
        """Codes `[row, cell]` of the next frame, whose action is known.

        Raises:
            ValueError: It is not, or all frames were made.
        """
        if self.shown >= min(self.length, self.actions.shape[1] - self.given + 1):
            raise ValueError(
                f"frame {self.shown} has no action yet" if self.shown < self.length else "no frame is left"
            )
        state = self._state if self._state is not None else self._begin()
        begins = state.prompt_length + (self.frames.shape[1] - self._fresh) * self.target.period
        ends = begins + self.target.model.cells
        while min(state.host_emitted) < ends - state.prompt_length:
            self.decoder.advance(state)
        made = state.history[:, begins:ends].clone()
        self._emitted += made.numel() + len(made) * (self.shown > 0)
        self.report.emitted = self._emitted  # over all sequences
        self.frames = torch.cat([self.frames, made[:, None]], 1)
        if self.frames.shape[1] - self._first == self.most:
            self._state = None
        return made

    def _begin(self) -> State:
        """A new sequence: all frames at first, later on the latest half of what the model sees."""
        known = self.frames.shape[1]
        self._first = 0 if known == self.given else known - self.most // 2
        self._fresh = known
        frames, actions = self.frames[:, self._first :], self.actions[:, self._first : known]
        more = min(self.length - self.shown, self.most - frames.shape[1])
        limit = more * self.target.period - 1
        forced = torch.full((len(frames), limit), -1, device=frames.device)
        clip, warp = Clip(frames, actions), replace(self.warp, forced=forced)
        state = self.decoder.start(clip, limit, source=self._source(), warp=warp)
        self.report.seconds["prefill"] += state.report.seconds["prefill"]
        state.report, self._state = self.report, state
        self._let(state)
        return state

    def _let(self, state: State) -> None:
        """Write down the actions that are known, and let rows go on to the end of the last frame that has one."""
        assert state.warp.forced is not None
        known, period = self.actions[:, self._fresh :], self.target.period
        places = state.warp.forced[:, period - 1 :: period]
        count = min(known.shape[1], places.shape[1])
        places[:, :count] = known[:, :count] + self.target.model.config.vocab_size
        state.limit = min((known.shape[1] + 1) * period - 1, state.warp.forced.shape[1])
        state.done = state.emitted >= state.limit
        state.host_done = [emitted >= state.limit for emitted in state.host_emitted]
        state.source = self._source()  # what is made ahead goes by rows that go together

    def _source(self) -> Source:
        """Noise, from the unit on that comes first in the sequence at hand."""
        rows, before = len(self.frames), (self._fresh - self.given) * self.target.period
        source = PhiloxSource.seeded(self.seed, rows, self.frames.device)
        return OffsetSource(Round(source, torch.full((rows,), before, device=self.frames.device), [before] * rows))
