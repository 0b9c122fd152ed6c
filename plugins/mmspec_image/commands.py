"""The image plugin's commands. Registering them imports nothing heavy."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.bench.command import pipeline_command
from mmspec.cli.groups import group
from mmspec.kits.pictures import command as kit
from mmspec.serving.live.command import Port, serve_page

if TYPE_CHECKING:
    from mmspec.serving.live.stage import Stage

MODEL = "mmspec/emoji"
ROWS: dict[str, dict[str, Any]] = {"plain": {}, "gs-sjd": {"k": 16}, "gsd": {"k": 16}}
CAPTIONS = ("heavy black heart", "police officer skin 4", "couple with heart skin 1 2", "princess skin 4")
GUIDANCE = 2.0


def add(app: typer.Typer) -> None:
    summary = "Draw a picture, speculatively; under an invariant method it is the plain picture for that seed."
    generate = kit.generate_command("code", MODEL, summary)
    group(app, "generate", "Generate, speculatively.").command("image")(generate)
    summary = "Compare methods, interleaved, with plain decoding: how fast pictures of codes are drawn."
    bench = pipeline_command(partial(kit.modality, "image", "code"), MODEL, 32, 12, summary)
    group(app, "bench", "Measure speed, and what it costs.").command("image")(bench)
    group(app, "demo", "Run every demo, or one.", run_all=True).command("image")(demo_image)
    group(app, "view", "Watch decoding in the browser.").command("image")(view_image)


def demo_image(
    out: Annotated[Path, typer.Option("--out", "-o", help="The sheet of pictures.")] = Path("demo-output/image.png"),
) -> None:
    """The shipped model draws emoji: plainly, the same in fewer passes, and with a lossy rule."""
    from mmspec.kits.pictures.demo import demonstrate

    demonstrate(MODEL, ROWS, CAPTIONS, GUIDANCE, out)


def view_image(
    model: Annotated[str, typer.Option(help="A model of captions: shipped, or a folder.")] = "mmspec/emoji",
    port: Port = 8012,
) -> None:
    """Watch a picture being drawn in the browser, plainly and by another method, side by side."""
    serve_page(partial(stage, model), port, "mmspec view image")


def stage(model: str) -> "Stage":
    """The page, with a model that is loaded once for all pages."""
    from transformers.utils import logging

    from mmspec.api.pipeline import Pipeline
    from mmspec.serving.live.stage import Stage
    from mmspec_image.view.session import DrawSession

    logging.disable_progress_bar()
    open_page = partial(DrawSession, Pipeline.from_pretrained(model, method="plain"), model)
    return Stage("image", f"A picture by {model}, round by round", Path(__file__).parent / "view" / "page", open_page)
