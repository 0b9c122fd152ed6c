"""Play with denoised frames: show them one by one, and make frames ahead while the player thinks.

The order of work keeps the player's wait short: when an action comes, its frame is shown, at once if it was guessed;
only then are frames made for guesses of the next actions, one action deeper at a time, until the next action comes.
Under joint denoising (`nfd`), frames are made when one has to be shown and is not available, and at no other time, so
that they do not depend on how long the player thinks.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.noise import DraftNoise
from mmspec.core.policies import Fixed
from mmspec.core.protocols import Drafter, Target
from mmspec.core.report import Report
from mmspec.core.round import Pending
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec_video.deviation import FrameReport
from mmspec_video.targets.denoiser import StoppedError
from mmspec_video.targets.frames import FramesTarget
from mmspec_video.targets.tree import FramePrompt


class FramePlay:
    """A call over denoised frames, of `length` new ones behind the latents `[row, n, channel, height, width]` and the
    actions `[row, n - 1]` between them; the rows' players act in step. Refuses more first frames than the model's
    window has room for.
    """

    passes = None  # those of codes are counted by `TokenPlay`

    def __init__(
        self, decoder: Decoder, frames: Tensor, actions: Tensor, length: int, seed: int | Sequence[int]
    ) -> None:
        target = decoder.target
        assert isinstance(target, FramesTarget)
        if not 1 <= frames.shape[1] <= target.most:
            raise ValueError(f"this model begins with 1 to {target.most} frames, not {frames.shape[1]}")
        assert target.vocab is not None
        unknown = torch.full_like(frames[:, :1, 0, 0, 0], target.vocab, dtype=torch.int64)
        self._first, self._past = frames, torch.cat([unknown, actions], 1)
        self.actions, self.length, self.seed = actions[:, :0], length, seed
        self.shown = 0  # new frames that were shown
        joint = target.joint is not None and decoder.k > 0
        self._known = KnownActions(decoder.drafter) if joint else None
        # Guesses go deeper step by step, so that a player who acts early waits for one step only.
        self._depths = range(1, 1 if joint else min(decoder.k, length) + 1)
        drafter = self._known or decoder.drafter
        # Its policy is set before every pass, to the depth of the draft.
        self.decoder = Decoder(target, drafter, decoder.rule, k=decoder.k, name=decoder.name)
        self._state: State | None = None
        self.pending: Pending | None = None  # the last pass: the next frame, and frames that were made ahead of it

    @property
    def report(self) -> Report:
        """Counts and times; units are actions."""
        if self._state is None:
            return FrameReport(self.decoder.name, self.decoder.rule.exactness, rows=len(self._first))
        return self._state.report

    @property
    def guesses(self) -> bool:
        return self.decoder.k > 0

    @property
    def discarded(self) -> int:
        """Frames that were made and not shown; frames that are still available count."""
        return 0 if self._state is None else self._state.cache.denoised - self.shown * len(self._first)

    def act(self, actions: Tensor) -> None:
        """Add the next actions `[row, n]`; each leads to one more frame."""
        self.actions = torch.cat([self.actions, actions], 1)

    def actions_of(self, frames: int) -> Tensor:
        """The actions `[row, frame]` that led to the first `frames` new frames."""
        return self.actions[:, :frames]

    def frame(self) -> Tensor:
        """The next frame, latents `[row, channel, height, width]`."""
        if self.shown >= min(self.length, self.actions.shape[1]):
            missing = self.shown < self.length
            raise ValueError(f"frame {self.shown} has no action yet" if missing else "no frame is left")
        action = self.actions[:, self.shown : self.shown + 1]
        if self._state is None:
            self._state = self._start(action)
        else:
            self.decoder.advance(self._state, truth=action, pending=self.pending)
        self.decoder.policy = Fixed(0 if self._known is None else self.decoder.k)
        if self._known is not None:
            self._known.known = self.actions[:, self.shown + 1 :]
        self.pending = self.decoder.speculate(self._state)  # available frames are not made again
        self.shown += 1
        frames = self.pending.scores.auxiliary
        assert frames is not None
        return frames[:, 0]

    def ahead(self, until: Callable[[], bool] | None = None) -> None:
        """Make frames for guesses of the next action; nothing where it is known, or where no frame is wanted.

        `until` is called before every pass: whether the action is there. A frame that is not finished then is dropped.
        """
        state = self._state
        if state is None or self.actions.shape[1] > self.shown or self.shown >= self.length:
            return
        state.cache.until = until
        with suppress(StoppedError):
            for depth in self._depths:
                self.decoder.policy = Fixed(depth)
                self.pending = self.decoder.speculate(state)
        state.cache.until = None

    def _start(self, action: Tensor) -> State:
        prompt = FramePrompt(self._first, self._past, action[:, 0], self.seed)
        # One unit more than frames: the action of the last frame is never settled.
        state = self.decoder.start(prompt, self.length + 1, seed=0)
        state.report = FrameReport(**vars(state.report), deviation=state.cache.deviation)
        return state


class KnownActions:
    """A drafter of chains of known actions, else of another drafter's. Rows whose next frame is available draft no
    further: their next frames are made jointly once one is needed.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.offers, self.needs = drafter, drafter.offers, drafter.needs
        self.known: Tensor | None = None  # `[row, n]`: known actions after the root
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
