"""`python -m tools.train`: the recipes of the shipped models, one command each."""

import sys
from collections.abc import Callable

import typer

from mmspec.cli.arguments import checked
from mmspec.cli.boundary import run
from tools.train.pictures.command import train_continuous, train_flow, train_image, train_image_eagle
from tools.train.text.command import train_eagle3, train_judge, train_ppd, train_ssm, train_text
from tools.train.video.command import train_video


def build() -> typer.Typer:
    """The application with all recipes."""
    app = typer.Typer(help="Train the models that mmspec ships.", no_args_is_help=True, pretty_exceptions_enable=False)
    commands: dict[str, Callable[..., None]] = {
        "text": train_text,
        "text-eagle3": train_eagle3,
        "text-ppd": train_ppd,
        "text-judge": train_judge,
        "ssm": train_ssm,
        "image": train_image,
        "image-eagle": train_image_eagle,
        "continuous": train_continuous,
        "flow": train_flow,
        "video": train_video,
    }
    for name, command in commands.items():
        app.command(name)(checked(command))
    return app


if __name__ == "__main__":
    sys.exit(run(lambda: build()(standalone_mode=False)))
