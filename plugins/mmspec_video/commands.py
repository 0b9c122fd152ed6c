"""The video plugin's commands; registering them imports neither torch nor diffusers.

`demo_video` walks through each shipped world by plain and by speculative decoding, together in a GIF. For frames of
codes all actions are known. Denoised frames are made for a player who thinks after every frame as long as plain
decoding takes to make one; the seconds are the player's waits.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.bench.command import pipeline_command
from mmspec.cli.arguments import Device, Drafted, Dtype, Method, Options, RuleName, refuse_method
from mmspec.cli.groups import group
from mmspec.cli.places import refuse_folders, refuse_unwritable
from mmspec.serving.live.command import Port, serve_page
from mmspec_video.training.command import train_student

if TYPE_CHECKING:
    from mmspec.serving.live.stage import Stage

WORLDS = ("four-courts", "four-courts-tokens")
MODELS = tuple(f"mmspec/{world}" for world in WORLDS)
EVERY, FRAMES = 4, 24  # every so many frames one is beside the simulator's on the sheet; and most new frames of a walk


def add(app: typer.Typer) -> None:
    summary = "Compare methods, interleaved, with plain decoding: how fast frames are made where all actions are known."
    bench = pipeline_command(_clips, "mmspec/four-courts-tokens", 4, None, summary)
    group(app, "bench", "Measure speed, and what it costs.").command("video")(bench)
    group(app, "generate", "Generate, speculatively.").command("video")(generate_video)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("video")(demo_video)
    app.command("play")(play)
    group(app, "train", "Train drafters for models of yours.").command("student")(train_student)


def _clips() -> Any:
    from mmspec_video.recorded import clips

    return clips()


def generate_video(
    frame: Annotated[Path, typer.Argument(help="A picture of the size of the model's frames: what is there first.")],
    *,
    actions: Annotated[
        str, typer.Option(help="Names or numbers with commas between them; for Oasis also a *.one_hot_actions.pt.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The new frames: .gif, or .mp4.")] = Path("out.gif"),
    model: Annotated[str, typer.Option(help="A shipped model (mmspec/…) or a folder.")] = MODELS[0],
    method: Method = "auto",
    rule: RuleName = None,
    num_speculative_tokens: Drafted = None,
    num_frames: Annotated[int | None, typer.Option(min=1, help="Default: one an action.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Of denoising, a frame; default: the model's.")] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same frames.")] = 0,
    opt: Options = None,
    device: Device = "cpu",
    dtype: Dtype = None,
) -> None:
    """Make frames of a world from a picture and actions."""
    refuse_unwritable(out)
    refuse_method(method)
    from PIL import Image, UnidentifiedImageError

    from mmspec.kits.pictures.command import pipeline
    from mmspec.registry.options import parse
    from mmspec.registry.printable import shown
    from mmspec_video.clips import refuse_clip

    refuse_clip(out, 1)
    how = parse(opt or [])
    try:
        with Image.open(frame) as opened:
            first = opened.convert("RGB")
    except UnidentifiedImageError:
        raise ValueError(f"{shown(frame)} is no picture that can be read") from None
    how |= {"dtype": dtype, "method": method, "rule": rule, "k": num_speculative_tokens}
    pipe = pipeline(model, device, makes="video", **how)
    listed = [int(each) if each.isdecimal() else each for each in map(str.strip, actions.split(","))]
    walk = actions if actions.endswith(".pt") else listed
    made = pipe(first, walk, num_frames=num_frames, num_inference_steps=steps, seed=seed)
    file = str(made.save(out))
    typer.echo("\n".join(line for line in (pipe.why, str(made.report), file) if line), err=True)


def play(port: Port = 8010) -> None:
    """Walk through the shipped worlds in the browser, plainly and with frames that are made ahead, side by side."""
    serve_page(stage, port, "mmspec play")


def stage() -> "Stage":
    """The page, with both worlds; their models are loaded here, once for all pages."""
    from transformers.utils import logging

    from mmspec.serving.live.stage import Stage
    from mmspec_video.play.session import PlaySession, World

    logging.disable_progress_bar()
    worlds = {name: World.shipped(name) for name in WORLDS}
    return Stage("play", "Walk through a world", Path(__file__).parent / "play" / "page", partial(PlaySession, worlds))


@dataclass
class Walk:
    method: str
    frames: list[Any]  # PIL pictures
    passes: int  # passes of the transformer after the first frames
    seconds: float  # time of all frames; with a player, the time that the player waited
    same: bool = True  # whether the frames are plain decoding's


@dataclass
class Player:
    """A player who thinks before every action."""

    walk: Sequence[str]  # the actions
    thinks: float  # seconds of thinking
    waits: list[float] = field(default_factory=list)  # seconds from every action to its frame
    _answered: float = 0.0

    def __call__(self, number: int, frames: Any) -> str:
        self.sees()
        time.sleep(self.thinks)
        self._answered = time.perf_counter()
        return self.walk[number]

    def sees(self) -> None:
        """Record that the last action's frame is shown."""
        if self._answered:
            self.waits.append(time.perf_counter() - self._answered)


def demo_video(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder that receives a GIF and a picture of each model.")
    ] = Path("demo-output"),
) -> None:
    """Walk through the shipped worlds: the same frames plainly and speculatively, as GIFs; and the simulator's."""
    refuse_folders(out)
    from diffusers.image_processor import VaeImageProcessor
    from diffusers.utils import logging

    import mmspec
    from mmspec.files import save_whole
    from mmspec.kits.pictures.demo import labelled
    from mmspec.report import terminal
    from mmspec_video.clips import refuse_clip, save_clip
    from mmspec_video.recorded import TOUR_CLIP, folder_of, recorded

    logging.disable_progress_bar()  # of loading, which is short
    out.mkdir(parents=True, exist_ok=True)
    lines, files = [], []
    for name in MODELS:
        file = out / f"{name.rpartition('/')[2]}.gif"
        refuse_clip(file, 1)
        pipe = mmspec.Pipeline.from_pretrained(name, method="plain")
        clips = recorded([folder_of(name)], TOUR_CLIP)
        tour = (clips.frames[0, : FRAMES + 1] + 1) / 2
        actions = [pipe.config.actions[number] for number in clips.actions[0, :FRAMES].tolist()]
        rows = walked(pipe, tour[:1], actions)
        clip = [
            labelled([[row.frames[number]] for row in rows], [row.method for row in rows], [f"{number + 1}: {action}"])
            for number, action in enumerate(actions)
        ]
        files.append(save_clip(clip, file, pipe.config.fps))
        simulated = VaeImageProcessor(do_normalize=False).postprocess(tour[1:], "pil", [False] * len(actions))
        both = [simulated[::EVERY], rows[0].frames[::EVERY]]
        sheet = labelled(both, ["simulator", rows[0].method], [str(n + 1) for n in range(0, len(actions), EVERY)])
        files.append(file.with_suffix(".png"))
        save_whole(files[-1], partial(sheet.save, format="PNG"))
        for row in rows:
            verdict = "" if row is rows[0] else "equal to plain's" if row.same else "others"
            numbers = (str(len(row.frames)), str(row.passes), f"{row.seconds:.2f}")
            lines.append((name, row.method, *numbers, verdict))
    console = terminal.terminal()
    columns = ("model", "method", "frames", "passes", "seconds", "frames are")
    terminal.table(console, columns, lines, whole=("model", "method"), boxed=True)
    for text in (
        "Seconds of a world that is denoised are its player's waits; a pass of one is a step.",
        *map(str, files),
    ):
        terminal.line(console, text)


def walked(pipe: Any, first: Any, walk: Sequence[str]) -> list[Walk]:
    """The walks by plain decoding and by the model's default method."""
    from mmspec.registry import installed
    from mmspec_video.models.token_world import TokenWorldModel

    target = installed().target_for(pipe.transformer)
    assert target is not None
    default = target.default_methods[0]
    run: Callable[..., tuple[Walk, float]] = _coded if isinstance(pipe.transformer, TokenWorldModel) else _played
    pipe.set_progress_bar_config(disable=True)
    run(pipe.use("plain"), first, walk[:2], 0.0)  # a warm-up
    plain, each = run(pipe.use("plain"), first, walk, 0.0)
    ours, _ = run(pipe.use(default.method, k=default.k), first, walk, each)
    ours.same = all(own.tobytes() == other.tobytes() for own, other in zip(ours.frames, plain.frames, strict=True))
    return [plain, ours]


def _coded(pipe: Any, first: Any, walk: Sequence[str], thinks: float) -> tuple[Walk, float]:
    """A walk whose actions are all known; and a wait of 0."""
    began = time.perf_counter()
    output = pipe(first, walk, seed=0)
    seconds = time.perf_counter() - began
    return Walk(pipe.decoder().name, output.frames[0], output.report.rounds, seconds), 0.0


def _played(pipe: Any, first: Any, walk: Sequence[str], thinks: float) -> tuple[Walk, float]:
    """A walk with a player; and the median wait."""
    player = Player(walk, thinks)
    output = pipe(first, player, num_frames=len(walk), seed=0)
    if output.actions.shape[1] < len(walk):
        raise KeyboardInterrupt  # it ended the walk
    player.sees()
    passes = (len(walk) + output.discarded) * pipe.transformer.sampler.steps
    return Walk(pipe.decoder().name, output.frames[0], passes, sum(player.waits)), statistics.median(player.waits)
