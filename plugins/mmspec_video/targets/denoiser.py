"""One frame from noise, behind a window of earlier ones; and what of a window need not be computed again."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from mmspec.core.noise import Substream
from mmspec.core.philox import PhiloxNoise
from mmspec_video.models.keys import FrameKeys, Pair, causal
from mmspec_video.sampling import Sampler
from mmspec_video.targets.window import Window

Cache = Literal["exact", "streaming", "none"]
CACHES = ("exact", "streaming", "none")


class FrameModel(Protocol):
    """A causal video transformer: `NextFrameDiT`, `OasisDiT`.

    Attributes:
        frame_shape: Channels, height and width of a latent frame.
        window: Most frames that are seen at once, the newest one included.
        blocks: Its layers.
        sampler: From noise to frames, as it was made for.
        vectors: As `Denoiser` has them.
        config: Has `actions`, where it reads their numbers.
    """

    frame_shape: tuple[int, int, int]
    window: int
    blocks: Any
    sampler: Sampler
    vectors: Tensor | None
    config: Any

    def __call__(
        self, x: Tensor, time: Tensor, actions: Tensor, position: Tensor, seen: Tensor | None, keys: FrameKeys | None, /
    ) -> Tensor:
        """What the sampler takes, of every frame."""
        ...


class StoppedError(Exception):
    """Whoever asked for frames ahead of their time does not want them any more."""


@dataclass(frozen=True)
class Denoiser:
    """Passes of a model over one frame.

    Attributes:
        model: It.
        sampler: The steps.
        cache: `exact`: keys of the window are kept, and computed anew once its oldest frame has left, so that frames
            are those of `none`; `streaming`: they stay, with what they know of frames that have left: faster behind a
            full window, another distribution; `none`: the whole window in every step, as published.
        vectors: `[action, …]`: what the model reads of every action; None: its number.
    """

    model: FrameModel
    sampler: Sampler
    cache: Cache = "exact"
    vectors: Tensor | None = None

    def frame(self, window: Window, action: Tensor, key: Tensor, until: Callable[[], bool] | None = None) -> Tensor:
        """Frames `[row, channel, height, width]` behind a window whose keys are known, or not wanted.

        Args:
            window: What is seen.
            action: `[row]` int64.
            key: `[row, 2]`: of the noise.
            until: Asked before every pass.

        Raises:
            StoppedError: `until` says so.
        """
        x = self.sampler.begin(self.noise(key, window.number, 0))
        for step in range(self.sampler.steps):
            if until is not None and until():
                raise StoppedError
            out = self.says(window, x, action, self.sampler.time(step))
            last = step == self.sampler.steps - 1
            fresh = self.noise(key, window.number, step + 1) if self.sampler.noisy and not last else None
            x = self.sampler.advance(x, out, step, fresh)
        return x

    def noise(self, key: Tensor, number: Tensor, step: int, lane: Substream = Substream.UNIT) -> Tensor:
        """Standard normal `[row, channel, height, width]`: its address is the frame's number and the step."""
        where = torch.full_like(number[:, None], step)
        return PhiloxNoise(key, number[:, None], where, lane).normal(*self.model.frame_shape)[:, 0]

    def keyed(self, window: Window) -> Window:
        """The window with its keys: as they are, or in one pass over all of it."""
        if self.cache == "none" or window.keys is not None or not window.slots:
            return window
        keys = FrameKeys.none(len(self.model.blocks))
        seen = causal(window.slots, window.number.device) & window.there[:, None]
        seen = seen | torch.eye(window.slots, dtype=torch.bool, device=seen.device)  # an empty slot sees itself
        time = torch.full(
            window.actions.shape, self.sampler.context_time, dtype=torch.float32, device=window.frames.device
        )
        self.model(window.frames, time, self._read(window.actions), window.position, seen, keys)
        return replace(window, keys=keys.made())

    def keys_of(self, window: Window, frame: Tensor, action: Tensor) -> list[Pair]:
        """Keys `[row, 1, …]` of finished frames behind a window."""
        keys = self._before(window)
        time = torch.full(
            window.number[:, None].shape, self.sampler.context_time, dtype=torch.float32, device=frame.device
        )
        position, seen = window.number[:, None], self._seen(window)
        self.model(frame[:, None], time, self._read(action[:, None]), position, seen, keys)
        return keys.made()

    def says(self, window: Window, x: Tensor, action: Tensor, time: float) -> Tensor:
        """What the model says of one noisy frame `[row, …]`."""
        rows, position = len(x), window.number[:, None]
        now = torch.full((rows, 1), time, dtype=torch.float32, device=x.device)
        x, actions = x[:, None], action[:, None]
        if self.cache != "none":
            return self.behind(window, x, now, actions, position, self._seen(window))[:, 0]
        finished = torch.full(window.actions.shape, self.sampler.context_time, dtype=torch.float32, device=x.device)
        there = torch.cat([window.there, torch.ones_like(actions, dtype=torch.bool)], 1)
        frames = window.slots + 1
        seen = causal(frames, x.device) & there[:, None] | torch.eye(frames, dtype=torch.bool, device=x.device)
        every = torch.cat([window.frames, x], 1), torch.cat([finished, now], 1), torch.cat([window.actions, actions], 1)
        numbers = torch.cat([window.position, position], 1)
        return self.model(*every[:2], self._read(every[2]), numbers, seen, None)[:, -1]

    def behind(
        self, window: Window, x: Tensor, time: Tensor, actions: Tensor, position: Tensor, seen: Tensor | None
    ) -> Tensor:
        """What the model says of frames `[row, n, …]` behind a window whose keys are known.

        Args:
            window: What stands before all of them.
            x: `[row, n, channel, height, width]`, each frame as noisy as its time says.
            time: `[row, n]`.
            actions: `[row, n]` int64: what led to each.
            position: `[row, n]` int64: their numbers.
            seen: `[row, n, slot + n]` bool: what each sees, the window first; None: one frame sees all.
        """
        return self.model(x, time, self._read(actions), position, seen, self._before(window))

    def _before(self, window: Window) -> FrameKeys:
        if not window.slots:
            return FrameKeys.none(len(self.model.blocks))
        assert window.keys is not None, "a window without keys: ask for `keyed` first"
        return FrameKeys.of(window.keys)

    @staticmethod
    def _seen(window: Window) -> Tensor | None:
        """One frame sees all slots that are there, and itself; None: all slots are."""
        if window.held == window.slots and len(window.there) == 1:
            return None
        itself = torch.ones_like(window.there[:, :1])
        return torch.cat([window.there, itself], 1)[:, None]

    def _read(self, actions: Tensor) -> Tensor:
        return actions if self.vectors is None else self.vectors.to(actions.device)[actions]
