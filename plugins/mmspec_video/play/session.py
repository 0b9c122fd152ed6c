"""The server's side of one open page: a world that can be played, the walk that it shows, and what its keys do."""

import base64
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from diffusers.image_processor import VaeImageProcessor
from PIL import Image
from torch import Tensor

from mmspec.api.pipeline import Pipeline
from mmspec.serving.live import stage
from mmspec.serving.live.stage import Send, png
from mmspec.shipped import asset
from mmspec_video.clips import save_clip
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.pipeline import NextFramePipeline
from mmspec_video.recorded import TOUR_CLIP, recorded

BETWEEN = 12  # frames of the tour between two beginnings: one a court
DEEPEST = 4  # most actions that are guessed ahead


@dataclass(frozen=True)
class World:
    name: str  # its name on the page
    pipe: NextFramePipeline  # its pipeline, whose modules all walks share
    beginnings: Tensor  # `[beginning, 3, height, width]` in [0, 1]: first frames of walks, by their seeds
    tour: list[int]  # numbers of the actions of the walk by itself, from the first beginning on
    ahead: Mapping[str, Any]  # the method that is compared with plain decoding, and its arguments

    @classmethod
    def shipped(cls, name: str) -> "World":
        """A world of `mmspec/…`, with the recorded tour that lies beside it."""
        pipe = Pipeline.from_pretrained(f"mmspec/{name}", method="plain")
        codes = isinstance(pipe.transformer, TokenWorldModel)
        ahead = {"method": "frame-gs-sjd", "k": 32} if codes else {"method": "branch-prediction"}
        clips = recorded([asset(name)], TOUR_CLIP)
        return cls(name, pipe, (clips.frames[0, ::BETWEEN] + 1) / 2, clips.actions[0].tolist(), ahead)

    @property
    def actions(self) -> list[str]:
        return list(self.pipe.config.actions)

    @property
    def columns(self) -> int | None:
        """Codes in a row of a frame; None where frames are no codes."""
        model = self.pipe.transformer
        return model.config.columns if isinstance(model, TokenWorldModel) else None

    def pipes(self, depth: int) -> dict[str, NextFramePipeline]:
        """Two pipelines over the same modules, by the names of their methods; where frames are denoised, one guesses
        `depth` actions ahead.
        """
        config, parts = self.pipe.config, self.pipe.components
        how = {"k": depth, **self.ahead}
        found = {}
        for name, arguments in (("plain", {"method": "plain"}), (how["method"], how)):
            pipe = NextFramePipeline(**parts, actions=config.actions, fps=config.fps).use(**arguments)
            pipe.set_progress_bar_config(disable=True)
            found[name] = pipe
        return found


FORMATS = ("gif", "mp4")
LARGEST_SEED = 2**31
SCALE, GAP = 4, 8  # magnification of saved frames; pixels between the two
PATIENCE = 10.0  # seconds that a walk's end is waited for


class PlaySession:
    """A page's walk, by plain decoding and by another method."""

    def __init__(self, worlds: Mapping[str, World], send: Send) -> None:
        self._worlds, self._send = worlds, send
        self._world: World | None = None
        self._panes: list[Pane] = []
        self._lock = Lock()  # a page may close while one of its messages is followed
        listed = [
            {"name": w.name, "actions": w.actions, "columns": w.columns, "tour": [w.actions[n] for n in w.tour]}
            for w in worlds.values()
        ]
        send({"type": "worlds", "worlds": listed, "deepest": DEEPEST})

    def receive(self, message: Mapping[str, Any]) -> None:
        """Follow a message: `start`, `key` or `save`; see `mmspec.serving.live.stage.Session`."""
        follow = {"start": self._start, "key": self._key, "save": self._save}
        with self._lock:
            follow[stage.one_of(message, "type", follow, "message")](message)

    def close(self) -> None:
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        for pane in self._panes:
            pane.leave()
        for pane in self._panes:
            pane.join(PATIENCE)
        self._panes = []

    def _start(self, message: Mapping[str, Any]) -> None:
        """Begin a walk: `world`, `seed`, `depth`."""
        name = stage.one_of(message, "world", self._worlds)
        seed, depth = stage.whole(message, "seed", LARGEST_SEED), stage.whole(message, "depth", DEEPEST)
        self._leave()
        self._world = world = self._worlds[name]
        first = world.beginnings[seed % len(world.beginnings)]
        pipes = world.pipes(depth)
        picture = VaeImageProcessor(do_normalize=False).postprocess(first[None], "pil", [False])[0]
        begun = {"type": "begun", "world": name, "panes": list(pipes), "actions": world.actions, "png": png(picture)}
        self._send(begun)
        self._panes = [Pane(number, pipe, first, seed, self._send) for number, pipe in enumerate(pipes.values())]

    def _key(self, message: Mapping[str, Any]) -> None:
        """One more frame in every picture: `action`."""
        if self._world is None or not self._panes:
            raise ValueError("there is no walk yet")
        action = stage.one_of(message, "action", self._world.actions)
        if any(pane.full for pane in self._panes):
            raise ValueError("too many keys wait for their frames")
        for pane in self._panes:
            pane.press(action)

    def _save(self, message: Mapping[str, Any]) -> None:
        """The walk so far, both pictures side by side: `as`, one of `FORMATS`."""
        kind = stage.one_of(message, "as", FORMATS, "format")
        shown = min((len(pane.frames) for pane in self._panes), default=0)
        if not shown or self._world is None:
            raise ValueError("there is no frame to save yet")
        frames = [_beside([pane.frames[number] for pane in self._panes]) for number in range(shown)]
        with tempfile.TemporaryDirectory() as folder:
            file = save_clip(frames, Path(folder) / f"walk.{kind}", self._world.pipe.config.fps)
            data = base64.b64encode(file.read_bytes()).decode()
        self._send({"type": "clip", "name": file.name, "data": data})


def _beside(pictures: list[Image.Image]) -> Image.Image:
    width, height = (SCALE * size for size in pictures[0].size)
    sheet = Image.new("RGB", (len(pictures) * (width + GAP) - GAP, height), "white")
    for number, picture in enumerate(pictures):
        sheet.paste(picture.resize((width, height), Image.Resampling.NEAREST), (number * (width + GAP), 0))
    return sheet


LONGEST = 2000  # frames of a walk; then a new one begins
PENDING = 16  # keys that may wait for their frames


class Pane:
    """A picture on the page: a walk by one method from the frame `first [3, height, width]` in [0, 1], in a thread of
    its own, which makes a frame for every key.
    """

    def __init__(self, number: int, pipe: NextFramePipeline, first: Tensor, seed: int, send: Send) -> None:
        self._number, self._pipe, self._first, self._seed, self._send = number, pipe, first, seed, send
        self.frames: list[Image.Image] = []
        self._keys: SimpleQueue[str | None] = SimpleQueue()
        self._pressed: deque[float] = deque()
        self._quit = False
        self._thread = Thread(target=self._walk, name=f"pane {number}", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """True if no further key can wait."""
        return len(self._pressed) >= PENDING

    def press(self, action: str) -> None:
        """Ask for the frame behind an action."""
        self._pressed.append(time.perf_counter())
        self._keys.put(action)

    def leave(self) -> None:
        """End the walk; its thread ends with the frame that it is making."""
        self._quit = True
        self._keys.put(None)

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _player(self, number: int, frames: Tensor) -> str | None:
        return None if self._quit else self._keys.get()

    def _walk(self) -> None:
        stream, hits = None, 0
        try:
            stream = self._pipe.stream(self._first[None], self._player, num_frames=LONGEST, seed=self._seed)
            for pictures in stream:
                wait = time.perf_counter() - self._pressed.popleft()
                if self._quit:
                    return
                accepted, passes = stream.report.accepted, stream.passes
                self.frames.append(pictures[0])
                hit = passes is None and accepted > hits  # of codes, `accepted` counts codes: none was there before
                told = {"hit": hit, "discarded": stream.discarded, "passes": passes}
                self._tell("frame", wait=wait, png=png(pictures[0]), **told)
                hits = accepted
            self._tell("over", frames=len(self.frames))
        except Exception as error:  # the page is told, whatever it was
            self._tell("error", says=f"{type(error).__name__}: {error}")

    def _tell(self, kind: str, **more: Any) -> None:
        if not self._quit:
            message: Mapping[str, Any] = {"type": kind, "pane": self._number, "number": len(self.frames), **more}
            self._send(message)
