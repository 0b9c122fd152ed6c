"""A call of `NextFramePipeline` that makes frames, one by one, and its output."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers.image_processor import VaeImageProcessor
from diffusers.utils import BaseOutput
from torch import Tensor

from mmspec.core.report import Report
from mmspec.threads import asked
from mmspec_video.arguments import Player, answer_in
from mmspec_video.clips import save_clip
from mmspec_video.codec import Codec
from mmspec_video.playing.frames import FramePlay
from mmspec_video.playing.tokens import TokenPlay


@dataclass
class NextFrameOutput(BaseOutput):
    """New frames and how they were made."""

    # PIL pictures `frames[row][i]`, values in [0, 1] as `[row, n, height, width, 3]` (output type `np`) or `[row, n, 3,
    # height, width]` (`pt`), or the transformer's codes or latents `[row, n, …]` (`latent`)
    frames: Any
    report: Report  # counts and times. Units are codes and actions of a token model, and actions of a denoising model.
    actions: Tensor  # `[row, n]` int64: the action that led to each frame
    discarded: int = 0  # frames that were made ahead for guessed actions that the player did not take
    fps: int = field(default=20, repr=False)  # frames per second, for `save`

    def save(self, path: str | Path, row: int = 0, fps: int | None = None) -> Path:
        """Write a row as GIF or MP4; see `mmspec_video.clips.save_clip`."""
        frames = self.frames[row]
        if not isinstance(frames, list):
            shown = torch.as_tensor(frames)
            if shown.dim() != 4 or 3 not in (shown.shape[1], shown.shape[-1]):
                raise ValueError("latents are no pictures: ask for output_type='pil', 'np' or 'pt'")
            shown = shown if shown.shape[-1] == 3 else shown.permute(0, 2, 3, 1)
            frames = VaeImageProcessor.numpy_to_pil(shown.cpu().numpy())
        return save_clip(frames, path, self.fps if fps is None else fps)


@dataclass
class FrameStream(Iterator[Any]):
    """The frames of a call, one by one; its arguments are checked."""

    pipe: Any
    play: FramePlay | TokenPlay  # makes the frames
    codec: Codec  # between pixels and the transformer's codes or latents
    last: Tensor  # `[row, …]`: the last of the first frames, as the transformer reads it
    pixels: Tensor  # `[row, 3, height, width]` in [0, 1]: the latest frame in pixels
    length: int  # new frames wanted
    player: Player | None  # answers with actions; None: all actions are known
    output_type: str

    def __post_init__(self) -> None:
        self._frames = self._made()

    def __next__(self) -> Any:
        return next(self._frames)

    def close(self) -> None:
        self._frames.close()

    @property
    def report(self) -> Report:
        """Counts and times so far."""
        return self.play.report

    @property
    def passes(self) -> list[int] | None:
        """Of frames of codes, the number of the pass that brought every code of the first row's latest frame."""
        return self.play.passes

    @property
    def discarded(self) -> int:
        """Frames that were made ahead and not shown, so far; frames that are still available count."""
        return self.play.discarded

    def output(self, shown: list[Any], fps: int) -> NextFrameOutput:
        """The output of the call, which has shown these frames."""
        if self.output_type == "pil":
            frames: Any = [[step[row] for step in shown] for row in range(len(self.pixels))]
        elif shown:
            frames = torch.stack([torch.as_tensor(step) for step in shown], 1)
            frames = frames if isinstance(shown[0], Tensor) else frames.numpy()
        else:
            frames = self._converted(self.last)[:, None][:, :0]
        return NextFrameOutput(frames, self.report, self.play.actions_of(len(shown)).cpu(), self.discarded, fps)

    def _made(self) -> Generator[Any, None, None]:
        play, pipe = self.play, self.pipe
        try:
            with pipe.progress_bar(total=self.length) as bar:
                for number in range(self.length):
                    if self.player is not None:
                        answer = answer_of(partial(self.player, number, self.pixels), play)
                        if answer is None:
                            return
                        actions = answer_in(answer, len(self.pixels), pipe.config.actions)
                        play.act(actions.to(pipe._execution_device))
                    frame = play.frame()
                    with torch.no_grad():
                        # One at a time: convolutions round by the width of their batch.
                        pixels = torch.cat([self.codec.decode(row) for row in frame.split(1)])
                        self.pixels = ((pixels.float() + 1) / 2).clamp(0, 1).cpu()
                    bar.update()
                    yield self._converted(frame)
        finally:
            pipe.maybe_free_model_hooks()

    def _converted(self, frame: Tensor) -> Any:
        """The latest frame of every row as `output_type` says; `frame` has its codes or latents."""
        if self.output_type == "latent":
            return frame
        how = [False] * len(self.pixels)
        return VaeImageProcessor(do_normalize=False).postprocess(self.pixels, self.output_type, how)


def answer_of(ask: Callable[[], Any], play: FramePlay | TokenPlay) -> Any:
    """The player's answer, asked for in a thread where frames can be made ahead; None: the player quits. What the
    player raises is raised here.
    """
    try:
        if not play.guesses:
            return ask()
        answer = asked(ask, "player")
        play.ahead(answer.done)
        return answer.result()
    except StopIteration:
        return None
