"""Play with frames of codes; actions may be known long before they are needed, or only when a frame was seen.

A sequence ends where the model's context does. Then the latest frames begin a new sequence: which frames these are
depends on the frame's number and not on the method, so that every method makes the same frames. Noise belongs to a
unit's number in the whole clip.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.noise import OffsetSource, Round, Source
from mmspec.core.philox import PhiloxSource
from mmspec.core.report import Report
from mmspec.core.state import State
from mmspec.core.warp import Warp
from mmspec_video.targets.token_frames import TokenFramesTarget, TokenPrompt


class TokenPlay:
    """A call over frames of codes `[row, n, cell]`, with the members of `FramePlay`; `warp` samples the codes."""

    guesses = False  # codes are not drafted beyond an action that is not known
    discarded = 0

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
        self.target, self._most = target, target.model.config.frames
        if not 1 <= frames.shape[1] < self._most:
            raise ValueError(f"this model begins with 1 to {self._most - 1} frames, not {frames.shape[1]}")
        self.frames, self.actions = frames, actions  # all frames, the first ones included
        self._given = frames.shape[1]
        self._warp = warp if warp is not None else Warp()
        width = decoder.one_width()
        self.report = Report(decoder.name, decoder.rule.exactness, rows=len(frames), width=width)
        self.passes: list[int] = []  # which pass brought every code of the first row's latest frame
        self._brought: list[int] = []  # by which pass every unit of the current sequence came
        self._state: State | None = None
        self._first = self._new = 0  # numbers of the first frame of the current sequence, and of its first new frame

    @property
    def shown(self) -> int:
        """New frames that were made."""
        return self.frames.shape[1] - self._given

    def act(self, actions: Tensor) -> None:
        self.actions = torch.cat([self.actions, actions], 1)
        if self._state is not None:
            self._force(self._state)

    def actions_of(self, frames: int) -> Tensor:
        return self.actions[:, self._given - 1 :][:, :frames]

    def ahead(self, until: Callable[[], bool] | None = None) -> None:
        pass

    def frame(self) -> Tensor:
        if self.shown >= min(self.length, self.actions.shape[1] - self._given + 1):
            missing = self.shown < self.length
            raise ValueError(f"frame {self.shown} has no action yet" if missing else "no frame is left")
        state = self._state if self._state is not None else self._start()
        begin = state.prompt_length + (self.frames.shape[1] - self._new) * self.target.period
        end = begin + self.target.model.cells
        while min(state.host.emitted) < end - state.prompt_length:
            self.decoder.advance(state)
            self._note(state)
        self.passes = self._brought[begin - state.prompt_length : end - state.prompt_length]
        codes = state.history[:, begin:end].clone()
        self.frames = torch.cat([self.frames, codes[:, None]], 1)
        # The report counts shown units of all sequences; the first action, which is in the prompt, is left out.
        self.report.emitted = len(codes) * (self.shown * self.target.period - 1)
        if self.frames.shape[1] - self._first == self._most:
            self._state = None
        return codes

    def _start(self) -> State:
        """Begin a sequence: with all first frames, or later on with the latest half of the model's context."""
        known = self.frames.shape[1]
        self._first = 0 if known == self._given else known - self._most // 2
        self._new = known
        frames, actions = self.frames[:, self._first :], self.actions[:, self._first : known]
        limit = min(self.length - self.shown, self._most - frames.shape[1]) * self.target.period - 1
        forced = torch.full((len(frames), limit), -1, device=frames.device)
        prompt, warp = TokenPrompt(frames, actions), replace(self._warp, forced=forced)
        state = self.decoder.start(prompt, limit, source=self._source(), warp=warp)
        self.report.seconds["prefill"] += state.report.seconds["prefill"]
        state.report, self._state = self.report, state
        self._brought = []
        self._note(state)
        self._force(state)
        return state

    def _note(self, state: State) -> None:
        """Note the last pass at the units that are new."""
        self._brought += [self.report.rounds] * (state.host.emitted[0] - len(self._brought))

    def _force(self, state: State) -> None:
        """Force the known actions, and let rows go on to the end of the last frame that has one."""
        assert state.warp.forced is not None
        known, period = self.actions[:, self._new :], self.target.period
        places = state.warp.forced[:, period - 1 :: period]
        count = min(known.shape[1], places.shape[1])
        places[:, :count] = known[:, :count] + self.target.model.config.vocab_size
        state.lengthen(min((known.shape[1] + 1) * period - 1, state.warp.forced.shape[1]))
        state.source = self._source()  # rows that were done go on; the old source buffered noise without them

    def _source(self) -> Source:
        """Noise by position in the clip; position 0 of the sequence is its first new unit."""
        rows, before = len(self.frames), (self._new - self._given) * self.target.period
        source = PhiloxSource.seeded(self.seed, rows, self.frames.device)
        return OffsetSource(Round(source, torch.full((rows,), before, device=self.frames.device), [before] * rows))
