"""`mmspec view text`: a page on this machine that shows a text's rounds."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.serving.live.command import Port, serve_page

if TYPE_CHECKING:
    from mmspec.serving.live.stage import Stage


def view_text(
    model: Annotated[
        str, typer.Option(help="A shipped model (mmspec/…), a folder, or a hub name.")
    ] = "mmspec/text-14m",
    drafter: Annotated[str, typer.Option(help="A smaller model.")] = "mmspec/text-1m",
    port: Port = 8011,
) -> None:
    """Watch a text being written in the browser: which round wrote which tokens, and the draft of every round."""
    serve_page(partial(stage, model, drafter), port, "mmspec view text")


def stage(model: str, drafter: str) -> "Stage":
    """The page, with a model that is loaded once for all pages."""
    from pathlib import Path

    from transformers.utils import logging

    from mmspec.hosts.loading import load_model
    from mmspec.kits.text.pipeline import TextPipeline
    from mmspec.serving.live.stage import Stage
    from mmspec_text.view.session import ViewSession

    logging.disable_progress_bar()
    pipe = TextPipeline.from_pretrained(model, method="plain")
    open_page = partial(ViewSession, pipe, load_model(drafter))
    return Stage("text", f"A text by {model}, round by round", Path(__file__).parent / "page", open_page)
