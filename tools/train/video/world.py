"""Training episodes: walks through the courts, drawn frame by frame."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmspec.files import save_whole
from mmspec.training.work import damaged
from tools.train.video.drawing import Camera
from tools.train.video.faces import faces
from tools.train.video.walking import ACTIONS, TOUR, Pose, Walker

FPS = 12
"""Frames per second."""
HELD_OUT = 10
"""One in so many episodes is held out."""
FILE = "world.npz"


@dataclass(frozen=True)
class World:
    """Episodes of equal length."""

    frames: Tensor  # `[episode, frame, 3, height, width]` uint8
    actions: Tensor  # `[episode, frame]` int64: action `i` leads from frame `i` to frame `i + 1`

    @property
    def held_out(self) -> Tensor:
        """`[episode]` bool: held-out episodes."""
        return torch.arange(len(self.frames)) % HELD_OUT == HELD_OUT - 1


def recorded(
    folder: Path, episodes: int, length: int, size: tuple[int, int], seed: int, say: Callable[[str], None]
) -> World:
    """The episodes in `folder`, rendered first where there are none.

    Args:
        folder: Folder that keeps the episodes.
        episodes: Number of episodes.
        length: Frames of an episode.
        size: Height and width of a frame.
        seed: Seed of the player.
        say: Receives progress lines.

    Raises:
        ValueError: Panda3D is not installed, or the folder holds other episodes.
    """
    file = folder / FILE
    if not file.is_file():
        say(f"rendering {episodes} episodes of {length} frames")
        frames, actions = rendered(episodes, length, size, seed)
        folder.mkdir(parents=True, exist_ok=True)
        save_whole(file, lambda side: np.savez(side, frames=frames, actions=actions, seed=seed))
    with damaged(file), np.load(file, allow_pickle=False) as held:
        frames, actions, kept = held["frames"], held["actions"], int(held["seed"])
    if (frames.shape, kept) != ((episodes, length, *size, 3), seed):
        raise ValueError(
            f"{file} holds other episodes, {list(frames.shape)} of seed {kept}; delete it to render them anew"
        )
    # contiguous, because bfloat16 convolutions of channels-last tensors take twice as long on a CPU
    return World(torch.from_numpy(frames).permute(0, 1, 4, 2, 3).contiguous(), torch.from_numpy(actions).long())


def rendered(episodes: int, length: int, size: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Frames `[episode, frame, height, width, 3]` uint8, and actions `[episode, frame]` uint8.

    Raises:
        ValueError: Panda3D is not installed.
    """
    frames = np.empty((episodes, length, *size, 3), np.uint8)
    actions = np.empty((episodes, length), np.uint8)
    with closing(Camera(faces(), size)) as camera:
        views = cache(camera.sees)
        for episode in range(episodes):
            walker = Walker(np.random.default_rng((seed, episode)))
            for number in range(length):
                frames[episode, number] = views(walker.pose)
                actions[episode, number] = walker.acts()
    return frames, actions


def toured(size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The tour through all courts: frames `[1, frame, height, width, 3]` and actions `[1, frame - 1]`, both uint8."""
    actions = [ACTIONS.index(action) for action, times in TOUR for _ in range(times)]
    poses = [Pose.first()]
    for action in actions:
        poses.append(poses[-1].after(action))
    with closing(Camera(faces(), size)) as camera:
        frames = [camera.sees(pose) for pose in poses]
    return np.stack(frames)[None], np.array([actions], np.uint8)
