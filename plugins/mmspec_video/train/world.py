"""Training episodes: ViZDoom's scenario `my_way_home`, played by a random player who mostly repeats the last action.

ViZDoom (Kempka et al., arXiv 1605.02097) contains the Freedoom graphics, runs without a screen, and is needed for
training only: `pip install 'mmspec[train]'`.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmspec.files import save_whole
from mmspec.training.work import damaged

ACTIONS = ("stay", "left", "right", "forward")
"""The action space, by number."""
SHARES = (0.1, 0.25, 0.25, 0.4)
"""Probability of each action, where a new one is chosen."""
STICKY = 0.8
"""Probability of repeating the last action instead."""
TICS, FPS = 3, 12
"""Tics of the game per frame (there are 35 per second), and about how many frames that makes per second."""
HELD_OUT = 10
"""One in so many episodes is held out."""
FILE = "world.npz"


@dataclass(frozen=True)
class World:
    """Episodes of equal length.

    Attributes:
        frames: `[episode, frame, 3, height, width]` uint8.
        actions: `[episode, frame]` int64: action `i` leads from frame `i` to frame `i + 1`.
    """

    frames: Tensor
    actions: Tensor

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
        seed: Seed of the game and of the player.
        say: Receives progress lines.

    Raises:
        ValueError: ViZDoom is not installed, or the folder holds other episodes.
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
        ValueError: ViZDoom is not installed.
    """
    frames = np.empty((episodes, length, *size, 3), np.uint8)
    actions = np.empty((episodes, length), np.uint8)
    with _game(seed) as game:
        for episode in range(episodes):
            actions[episode] = sticky(length, seed * 1_000_003 + episode)
            game.new_episode()
            for number in range(length):
                if game.is_episode_finished():  # the player has reached the goal
                    game.new_episode()
                picture = Image.fromarray(game.get_state().screen_buffer)
                frames[episode, number] = np.asarray(picture.resize(size[::-1], Image.Resampling.BOX))
                buttons = [int(actions[episode, number] == button) for button in range(1, len(ACTIONS))]
                game.make_action(buttons, TICS)
    return frames, actions


def sticky(length: int, seed: int) -> np.ndarray:
    """Actions `[length]` of a player who mostly repeats the last one."""
    draws = np.random.default_rng(seed)
    fresh, again = draws.choice(len(ACTIONS), length, p=SHARES), draws.random(length) < STICKY
    again[0] = False
    return fresh[np.maximum.accumulate(np.where(again, 0, np.arange(length)))]


@contextlib.contextmanager
def _game(seed: int) -> Iterator[Any]:
    """The scenario without a window, run in a temporary folder, since ViZDoom writes files where it runs."""
    try:
        import vizdoom
    except ImportError as error:
        raise ValueError(
            "frames are rendered by ViZDoom, which is not installed: pip install 'mmspec[train]'"
        ) from error
    game = vizdoom.DoomGame()
    game.load_config(str(Path(vizdoom.scenarios_path) / "my_way_home.cfg"))
    game.set_available_buttons([vizdoom.Button.TURN_LEFT, vizdoom.Button.TURN_RIGHT, vizdoom.Button.MOVE_FORWARD])
    game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
    game.set_screen_format(vizdoom.ScreenFormat.RGB24)
    game.set_window_visible(False)
    game.set_render_hud(False)
    game.set_render_weapon(False)
    game.set_render_crosshair(False)
    game.set_seed(seed)
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        game.init()
        try:
            yield game
        finally:
            game.close()
