"""Arguments of users: frames of several types and actions by number or name, checked before anything runs."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmspec.registry.suggest import unknown

Frames = Any
"""One PIL picture or several, or an array or tensor of frames: see `frames_in`."""
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
    """Numbers or names of actions as `[row, n]` int64.

    A sequence serves all rows; several rows have a sequence of sequences, or a tensor `[row, n]`. `what` is the word
    for them in messages.
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
