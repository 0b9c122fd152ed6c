"""`mmspec demo video`: a walk through each shipped world, plainly and speculatively, side by side in a GIF.

Frames of codes are made for actions that are all known. Denoised frames are made for a player who answers a frame's
time after every frame, as long as plain decoding takes for one: what counts is how long this player waits.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.places import refuse_folders

MODELS = ("mmspec/my-way-home", "mmspec/my-way-home-tokens")
WALK = (("left", 10), ("forward", 6), ("right", 16), ("forward", 6), ("left", 10))
"""Actions, and how long each is held: 48 frames."""
BEGINS = 1
"""Whose first frame of the recorded clips it begins with."""
SCALE, GAP, LETTERS = 4, 8, 14
"""How many times as large frames are shown; pixels between pictures; height of the letters."""


@dataclass
class Walked:
    """What one method made.

    Attributes:
        method: Its name.
        frames: PIL.
        same: Whether its frames are plain decoding's.
        passes: Of the transformer, behind the first frames.
        seconds: Until all frames were there; where somebody plays, those of waiting only.
    """

    method: str
    frames: list[Any]
    passes: int
    seconds: float
    same: bool = True


@dataclass
class Player:
    """Walks, and thinks before every step.

    Attributes:
        walk: Actions.
        thinks: Seconds.
    """

    walk: Sequence[str]
    thinks: float
    waits: list[float] = field(default_factory=list)
    _answered: float = 0.0

    def __call__(self, number: int, frames: Any) -> str:
        self.ends()
        time.sleep(self.thinks)
        self._answered = time.perf_counter()
        return self.walk[number]

    def ends(self) -> None:
        """A frame is there."""
        if self._answered:
            self.waits.append(time.perf_counter() - self._answered)


def demo_video(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder that receives a GIF of each model.")] = Path(
        "demo-output"
    ),
) -> None:
    """Walk through the shipped worlds: the same frames, plainly and speculatively, as GIFs side by side."""
    refuse_folders(out)
    from diffusers.utils import logging

    from mmspec.report import terminal
    from mmspec_video.bench.clips import recorded
    from mmspec_video.bench.run import folder_of, loaded
    from mmspec_video.clips import refuse_clip, save_clip

    logging.disable_progress_bar()  # of loading, which takes a moment only
    out.mkdir(parents=True, exist_ok=True)
    lines, files = [], []
    for name in MODELS:
        file = out / f"{name.rpartition('/')[2]}.gif"
        refuse_clip(file, 1)
        pipe = loaded(name, "cpu")
        first = (recorded([folder_of(name)]).frames[BEGINS, :1] + 1) / 2
        rows = walked(pipe, first, [action for action, held in WALK for _ in range(held)])
        files.append(save_clip(side_by_side(rows, WALK), file, pipe.config.fps))
        for row in rows:
            verdict = "" if row is rows[0] else "those of plain" if row.same else "others"
            numbers = (str(len(row.frames)), str(row.passes), f"{row.seconds:.2f}")
            lines.append((name, row.method, *numbers, verdict))
    console = terminal.terminal()
    columns = ("model", "method", "frames", "passes", "seconds", "frames are")
    terminal.table(console, columns, lines, whole=("model", "method"), boxed=True)
    for said in (
        "Seconds of a world that is denoised are those that its player waits; a pass of one is a step.",
        *map(str, files),
    ):
        terminal.line(console, said)


def walked(pipe: Any, first: Any, walk: Sequence[str]) -> list[Walked]:
    """Plain decoding's walk, and that of the model's default method.

    Args:
        pipe: A `NextFramePipeline`.
        first: Its first frame; see `mmspec_video.arguments.frames_in`.
        walk: Actions.
    """
    from mmspec.registry import installed
    from mmspec_video.models.token_world import TokenWorldModel

    target = installed().target_for(pipe.transformer)
    assert target is not None
    usual = target.default_methods[0]
    way: Callable[..., tuple[Walked, float]] = _coded if isinstance(pipe.transformer, TokenWorldModel) else _played
    pipe.set_progress_bar_config(disable=True)
    way(pipe.use("plain"), first, walk[:2], 0.0)  # what is made once is not on the clock
    plain, each = way(pipe.use("plain"), first, walk, 0.0)
    ours, _ = way(pipe.use(usual.method, k=usual.k), first, walk, each)
    ours.same = all(own.tobytes() == other.tobytes() for own, other in zip(ours.frames, plain.frames, strict=True))
    return [plain, ours]


def _coded(pipe: Any, first: Any, walk: Sequence[str], thinks: float) -> tuple[Walked, float]:
    """All actions are known; and 0, since nobody waits."""
    began = time.perf_counter()
    made = pipe(first, walk, seed=0)
    seconds = time.perf_counter() - began
    return Walked(pipe.decoder().name, made.frames[0], made.report.rounds, seconds), 0.0


def _played(pipe: Any, first: Any, walk: Sequence[str], thinks: float) -> tuple[Walked, float]:
    """Somebody plays; and the median wait."""
    player = Player(walk, thinks)
    made = pipe(first, player, num_frames=len(walk), seed=0)
    if made.actions.shape[1] < len(walk):
        raise KeyboardInterrupt  # which ended the walk; half of one is compared with nothing
    player.ends()
    passes = (len(walk) + made.discarded) * pipe.transformer.sampler.steps
    return Walked(pipe.decoder().name, made.frames[0], passes, sum(player.waits)), statistics.median(player.waits)


def side_by_side(rows: Sequence[Walked], walk: Sequence[tuple[str, int]]) -> list[Any]:
    """Pictures of all methods' frames: their names above, the action below."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(LETTERS)
    actions = [action for action, held in walk for _ in range(held)]
    width, height = (SCALE * side for side in rows[0].frames[0].size)
    line = LETTERS + GAP
    made = []
    for number, action in enumerate(actions):
        sheet = Image.new("RGB", (GAP + len(rows) * (width + GAP), 2 * line + height), "white")
        pen = ImageDraw.Draw(sheet)
        for place, row in enumerate(rows):
            left = GAP + place * (width + GAP)
            pen.text((left, GAP // 2), row.method, "black", font)
            shown = row.frames[number].resize((width, height), Image.Resampling.NEAREST)
            sheet.paste(shown, (left, line))
        pen.text((GAP, line + height + GAP // 2), f"{number + 1}: {action}", "black", font)
        made.append(sheet)
    return made
