"""A call of `NextFramePipeline`: its frames and actions, checked before anything runs; the frames that it makes."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers.image_processor import VaeImageProcessor
from diffusers.utils import BaseOutput
from PIL import Image
from torch import Tensor

from mmspec.core.report import Report
from mmspec.registry.suggest import unknown
from mmspec.threads import asked
from mmspec_video.clips import save_clip
from mmspec_video.codec import Codec
from mmspec_video.playing.frames import FramePlay
from mmspec_video.playing.tokens import TokenPlay

Frames = Any  # one PIL picture or several, or an array or tensor of frames: see `frames_in`
Actions = Sequence[Any] | Tensor | str | Path
"""Numbers or names of actions; for open-oasis also vectors, or a file of them."""
Player = Callable[[int, Tensor], Any]
"""Called with the number of the next frame and the latest frames `[row, 3, height, width]` in [0, 1]; returns the next
action, or one a row; None quits."""


def frames_in(given: Frames, size: tuple[int, int]) -> Tensor:
    """First frames as `[row, n, 3, height, width]` in [-1, 1]; `size` is the height and width of the model's frames.

    Given are a PIL picture or a list of them; a numpy array `[n, height, width, 3]`; a tensor `[n, 3, height, width]`
    or, for several rows, `[row, n, 3, height, width]`. Values are uint8, or floats in [0, 1].
    """
    frames = _tensor(given)
    if frames.dim() == 4:
        frames = frames[None]
    if frames.dim() != 5 or not frames.shape[0] * frames.shape[1]:
        raise ValueError(f"first frames are [n, 3, height, width], at least one, not {list(frames.shape)}")
    if tuple(frames.shape[2:]) != (3, *size):
        colours, height, width = frames.shape[2:]
        wanted = f"{size[0]} × {size[1]} pixels of 3 colours"
        raise ValueError(f"frames of this model are {wanted}, not {height} × {width} of {colours}")
    if frames.dtype == torch.uint8:
        return frames.float() / 127.5 - 1
    if not frames.is_floating_point():
        raise ValueError(f"frames are uint8, or floats in [0, 1], not {str(frames.dtype).removeprefix('torch.')}")
    low, high = float(frames.min()), float(frames.max())
    if not (low >= 0 and high <= 1):  # NaN is neither
        raise ValueError(f"frames of floats are in [0, 1]; these are in [{low:g}, {high:g}]")
    return frames.float() * 2 - 1


def actions_in(given: Any, rows: int, names: Sequence[str], what: str = "actions") -> Tensor:
    """Numbers or names of actions as `[row, n]` int64: one sequence for all rows, or a sequence of sequences, or a
    tensor `[row, n]`; `what` is the word for them in messages.
    """
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise ValueError(f"{what} are a sequence of numbers or names, one for every next frame, not {given!r}")
    listed = given.tolist() if isinstance(given, Tensor | np.ndarray) else list(given)
    nested = listed if listed and isinstance(listed[0], list | tuple) else [listed]
    if len(nested) not in (1, rows):
        raise ValueError(f"{len(nested)} sequences of {what} for {rows} rows; give one, or one a row")
    if len({len(row) for row in nested}) != 1:
        raise ValueError(f"rows have {what} of different lengths: {', '.join(str(len(row)) for row in nested)}")
    numbers = [[_number(action, names) for action in row] for row in nested]
    return torch.tensor(numbers, dtype=torch.int64).expand(rows, -1)


def answer_in(answer: Any, rows: int, names: Sequence[str]) -> Tensor:
    """A player's answer, one action for all rows or one a row, as actions `[row, 1]` int64."""
    if not isinstance(answer, int | str | np.integer | np.ndarray | Tensor | Sequence):
        kind = type(answer).__name__
        raise TypeError(f"a player answers with an action, or one a row, or quits with None, not with a {kind}")
    listed = answer.tolist() if isinstance(answer, Tensor | np.ndarray) else answer
    listed = list(listed) if isinstance(listed, Sequence) and not isinstance(listed, str) else [listed]
    if len(listed) not in (1, rows):
        raise ValueError(
            f"{len(listed)} actions came for the next frame of {rows} rows; one was asked for, or one a row"
        )
    return torch.tensor([_number(action, names) for action in listed]).expand(rows)[:, None]


def _number(action: Any, names: Sequence[str]) -> int:
    if isinstance(action, str):
        if action not in names:
            raise ValueError(unknown("action", action, names))
        return list(names).index(action)
    if isinstance(action, bool) or not isinstance(action, int | np.integer) or not 0 <= action < len(names):
        space = ", ".join(f"{i} {name}" for i, name in enumerate(names))
        raise ValueError(f"there is no action {action!r}; there is {space}")
    return int(action)


def _tensor(given: Frames) -> Tensor:
    if isinstance(given, Image.Image):
        given = [given]
    if isinstance(given, Tensor):
        return given
    if isinstance(given, np.ndarray):
        frames = given if given.ndim != 3 else given[None]
        if frames.ndim != 4:
            raise ValueError(f"an array of frames is [n, height, width, 3], not {list(given.shape)}")
        return torch.from_numpy(frames.copy()).permute(0, 3, 1, 2)
    if isinstance(given, Sequence) and all(isinstance(frame, Image.Image) for frame in given):
        if not given:
            raise ValueError("there is no first frame; give at least one")
        sizes = {frame.size for frame in given}
        if len(sizes) > 1:
            raise ValueError(f"first frames have several sizes (width, height): {', '.join(map(str, sorted(sizes)))}")
        return torch.stack([torch.from_numpy(np.array(frame.convert("RGB"))) for frame in given]).permute(0, 3, 1, 2)
    raise TypeError(f"first frames are pictures of PIL, an array or a tensor, not {type(given).__name__}")


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
