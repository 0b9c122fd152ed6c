"""Denoise one frame, given a window of earlier frames; and compute the window's keys once for all steps."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from mmspec.core.noise import Substream
from mmspec.core.philox import PhiloxNoise
from mmspec.core.transfer import moved
from mmspec_video.models.keys import FrameKeys, LayerKeys, Pair, causal, current
from mmspec_video.sampling import Sampler
from mmspec_video.targets.window import Window

Cache = Literal["exact", "streaming", "none"]
CACHES = get_args(Cache)


class FrameModel(Protocol):
    """A causal video transformer: `NextFrameDiT`, `OasisDiT`."""

    frame_shape: tuple[int, int, int]  # channels, height and width of a latent frame
    window: int  # most frames in the attention window, the newest one included
    blocks: Any  # the transformer's blocks; each has a cache of keys
    sampler: Sampler  # the default sampler
    # `[action + 1, …]`: what the model reads for every action, "unknown" last; None: it reads ids
    vectors: Tensor | None
    device: torch.device
    action_count: int | None  # size of the action space; None: `vectors` are missing

    def __call__(
        self,
        x: Tensor,
        time: Tensor,
        actions: Tensor,
        position: Tensor,
        seen: Tensor | None,
        keys: FrameKeys | None,
        /,
    ) -> Tensor:
        """The prediction that the sampler needs, for every frame."""


class StoppedError(Exception):
    """Denoising was stopped by the caller's `until`."""


def denoise(
    sampler: Sampler,
    noise: Callable[[int], Tensor],
    predict: Callable[[Tensor, float], Tensor],
    until: Callable[[], bool] | None,
) -> Tensor:
    """All steps of a sampler, with standard normal noise of a step and the network's output for a state at a time;
    `until` is called before every step, and stops by True (`StoppedError`).
    """
    x = sampler.begin(noise(0))
    for step in range(sampler.steps):
        if until is not None and until():
            raise StoppedError
        out = predict(x, sampler.time(step))
        fresh = noise(step + 1) if sampler.noisy and step < sampler.steps - 1 else None
        x = sampler.advance(x, out, step, fresh)
    return x


@dataclass(frozen=True)
class Denoiser:
    """A model and a sampler over one frame at a time."""

    model: FrameModel  # the transformer
    sampler: Sampler  # the steps
    # `exact`: the window's keys are kept, and computed anew once its oldest frame has left, so that frames equal those
    # of `none`; `streaming`: keys are kept although they depend on frames that have left: faster once the window is
    # full, another distribution; `none`: the whole window in every step, as published
    cache: Cache = "exact"

    def __post_init__(self) -> None:
        if self.cache not in CACHES:
            raise ValueError(f"cache is one of {', '.join(CACHES)}, not {self.cache!r}")

    def frame(self, window: Window, action: Tensor, key: Tensor, until: Callable[[], bool] | None = None) -> Tensor:
        """Frames `[row, channel, height, width]` that follow a window; its keys are computed (`keyed`), if wanted.

        The actions `[row]` int64 lead to the frames, and the noise has keys `[row, 2]`. `until` is called before every
        step; True stops (`StoppedError`).
        """
        return denoise(
            self.sampler,
            lambda step: self.noise(key, window.number, step),
            lambda x, time: self.predict(window, x, action, time),
            until,
        )

    def noise(self, key: Tensor, number: Tensor, step: int, lane: Substream = Substream.UNIT) -> Tensor:
        """Standard normal `[row, channel, height, width]`, a function of key, frame number, step and lane."""
        where = torch.full_like(number[:, None], step)
        return PhiloxNoise(key, number[:, None], where, lane).normal(*self.model.frame_shape)[:, 0]

    def keyed(self, window: Window) -> Window:
        """The window with its keys, which one pass over all of it computes where they are missing."""
        if self.cache == "none" or window.keys is not None or not window.slots:
            return window
        keys = [LayerKeys() for _ in self.model.blocks]
        finished = self._finished(window.actions)
        self.model(window.frames, finished, self._read(window.actions), window.position, _causal(window.filled), keys)
        return replace(window, keys=current(keys))

    def keys_of(self, window: Window, frame: Tensor, action: Tensor) -> list[Pair]:
        """Keys `[row, 1, …]` of finished frames `[row, …]` that follow a window."""
        keys, actions = self._cache(window), action[:, None]
        finished, number = self._finished(actions), window.number[:, None]
        self.model(frame[:, None], finished, self._read(actions), number, _seen(window), keys)
        return current(keys)

    def predict(self, window: Window, x: Tensor, action: Tensor, time: float) -> Tensor:
        """The model's output for one noisy frame `[row, …]`."""
        x, actions, position = x[:, None], action[:, None], window.number[:, None]
        now = torch.full(actions.shape, time, dtype=torch.float32, device=x.device)
        if self.cache != "none":
            return self.predict_after(window, x, now, actions, position, _seen(window))[:, 0]
        frames = torch.cat([window.frames, x], 1)
        times = torch.cat([self._finished(window.actions), now], 1)
        read = self._read(torch.cat([window.actions, actions], 1))
        filled = torch.cat([window.filled, torch.ones_like(actions, dtype=torch.bool)], 1)
        numbers = torch.cat([window.position, position], 1)
        return self.model(frames, times, read, numbers, _causal(filled), None)[:, -1]

    def predict_after(
        self, window: Window, x: Tensor, time: Tensor, actions: Tensor, position: Tensor, seen: Tensor | None
    ) -> Tensor:
        """The model's output for several frames that follow a window whose keys are computed.

        `x [row, n, channel, height, width]` has each frame at the noise level of its `time [row, n]`; `actions [row,
        n]` int64 led to them, `position [row, n]` int64 are their numbers. `seen [row, n, slot + n]` bool says what
        each frame attends to, the window first; None: a single frame that attends to everything.
        """
        return self.model(x, time, self._read(actions), position, seen, self._cache(window))

    def _cache(self, window: Window) -> list[LayerKeys]:
        if not window.slots:
            return [LayerKeys() for _ in self.model.blocks]
        assert window.keys is not None, "the window has no keys: call `keyed` first"
        return [LayerKeys(pair) for pair in window.keys]

    def _finished(self, actions: Tensor) -> Tensor:
        """The time of finished frames, one per action."""
        return torch.full(actions.shape, self.sampler.context_time, dtype=torch.float32, device=actions.device)

    def _read(self, actions: Tensor) -> Tensor:
        """The model's input from actions: their ids, or their vectors."""
        vectors = self.model.vectors
        return actions if vectors is None else moved(vectors, actions.device)[actions]


def _causal(filled: Tensor) -> Tensor:
    """The causal mask `[row, slot, slot]` over `filled [row, slot]`; an empty slot sees itself, since none sees it."""
    slots = filled.shape[1]
    itself = torch.eye(slots, dtype=torch.bool, device=filled.device)
    return causal(slots, filled.device) & filled[:, None] | itself


def _seen(window: Window) -> Tensor | None:
    """The mask `[row, 1, slot + 1]` of one frame that follows a window; None where all slots are filled."""
    if window.fullest == window.slots and len(window.filled) == 1:
        return None
    itself = torch.ones_like(window.filled[:, :1])
    return torch.cat([window.filled, itself], 1)[:, None]
