"""The typer application: our commands, then those that plugins add."""

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

import mmspec
from mmspec.cli.arguments import checked
from mmspec.cli.merging import add_commands
from mmspec.registry import add_file, installed

#: Each is a function of that name in a module of that name, so that a command is found where its name says.
COMMANDS = ("methods", "plugins", "doctor", "check", "new", "verify", "card")


def build() -> typer.Typer:
    """The whole application; imports no torch."""
    app = typer.Typer(
        help="Speculative decoding beyond text: the same output, only faster.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback(context_settings={"obj": app})(_options)
    for name in COMMANDS:
        module = importlib.import_module(f"mmspec.cli.{name}")
        app.command(name)(checked(getattr(module, name)))
    for plugin in installed().plugins():
        add_commands(app, installed(), plugin)
    return app


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"mmspec {mmspec.__version__}")
        raise typer.Exit


def _add_plugins(context: typer.Context, files: list[Path]) -> list[Path]:
    """Before any command is looked up, so that a plugin's own commands are found, and stand in `--help`."""
    for file in files:
        plugin = add_file(installed(), file)
        add_commands(context.obj, installed(), plugin)
    if files:
        group: Any = context.command
        group.commands.update(typer.main.get_group(context.obj).commands)
    return files


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_show_version, is_eager=True)
    ] = False,
    plugin: Annotated[
        list[Path],
        typer.Option(
            help="Use a plugin of one file; repeatable.", metavar="FILE.py", callback=_add_plugins, is_eager=True
        ),
    ] = [],  # noqa: B006
) -> None: ...
