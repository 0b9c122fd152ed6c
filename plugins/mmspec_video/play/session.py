"""The server's side of one open page: the walk that it shows, and what its keys do."""

import base64
import tempfile
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from diffusers.image_processor import VaeImageProcessor
from PIL import Image

from mmspec.serving.live import said
from mmspec.serving.live.pictures import png
from mmspec.serving.live.stage import Send
from mmspec_video.clips import save_clip
from mmspec_video.play.pane import Pane
from mmspec_video.play.world import DEEPEST, World

FORMATS = ("gif", "mp4")
LARGEST_SEED = 2**31
SCALE, GAP = 4, 8
"""Magnification of saved frames; pixels between the two."""
PATIENCE = 10.0
"""Seconds that a walk's end is waited for."""


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
            follow[said.one_of(message, "type", follow, "message")](message)

    def close(self) -> None:
        """End the walk."""
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
        name = said.one_of(message, "world", self._worlds)
        seed, depth = said.whole(message, "seed", LARGEST_SEED), said.whole(message, "depth", DEEPEST)
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
        action = said.one_of(message, "action", self._world.actions)
        if any(pane.full for pane in self._panes):
            raise ValueError("too many keys wait for their frames")
        for pane in self._panes:
            pane.press(action)

    def _save(self, message: Mapping[str, Any]) -> None:
        """The walk so far, both pictures side by side: `as`, one of `FORMATS`."""
        kind = said.one_of(message, "as", FORMATS, "format")
        shown = min((len(pane.frames) for pane in self._panes), default=0)
        if not shown or self._world is None:
            raise ValueError("there is no frame to save yet")
        frames = [_beside([pane.frames[number] for pane in self._panes]) for number in range(shown)]
        with tempfile.TemporaryDirectory() as folder:
            file = save_clip(frames, Path(folder) / f"walk.{kind}", self._world.pipe.config.fps)
            data = base64.b64encode(file.read_bytes()).decode()
        self._send({"type": "clip", "name": file.name, "data": data})


def _beside(pictures: list[Image.Image]) -> Image.Image:
    """Pictures side by side, magnified."""
    width, height = (SCALE * size for size in pictures[0].size)
    sheet = Image.new("RGB", (len(pictures) * (width + GAP) - GAP, height), "white")
    for number, picture in enumerate(pictures):
        sheet.paste(picture.resize((width, height), Image.Resampling.NEAREST), (number * (width + GAP), 0))
    return sheet
