"""The typer application: our commands, then those that plugins add."""

import importlib
from typing import Annotated

import typer

import mmspec
from mmspec.registry import installed

#: Each is a function of that name in a module of that name, so that a command is found where its name says.
COMMANDS = ("methods", "plugins", "doctor")


def build() -> typer.Typer:
    """The whole application; imports no torch."""
    app = typer.Typer(
        help="Speculative decoding beyond text: the same output, only faster.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for name in COMMANDS:
        module = importlib.import_module(f"mmspec.cli.{name}")
        app.command(name)(getattr(module, name))
    installed().add_commands(app)
    return app


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"mmspec {mmspec.__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_show_version, is_eager=True)
    ] = False,
) -> None: ...
