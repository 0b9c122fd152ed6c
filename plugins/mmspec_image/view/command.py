"""`mmspec view image`: a page on this machine where pictures are drawn code by code."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.serving.live.command import Port, serve_page

if TYPE_CHECKING:
    from mmspec.serving.live.stage import Stage


def view_image(
    model: Annotated[str, typer.Option(help="A model of captions: shipped, or a folder.")] = "mmspec/emoji",
    port: Port = 8012,
) -> None:
    """Watch a picture being drawn in the browser, plainly and by another method, side by side."""
    serve_page(partial(stage, model), port, "mmspec view image")


def stage(model: str) -> "Stage":
    """The page, with a model that is loaded once for all pages."""
    from pathlib import Path

    from transformers.utils import logging

    from mmspec.api.pipeline import Pipeline
    from mmspec.serving.live.stage import Stage
    from mmspec_image.view.session import DrawSession

    logging.disable_progress_bar()
    open_page = partial(DrawSession, Pipeline.from_pretrained(model, method="plain"), model)
    return Stage("image", f"A picture by {model}, round by round", Path(__file__).parent / "page", open_page)
