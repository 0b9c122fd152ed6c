"""The typer application: our commands, then those that plugins add."""

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

import mmspec
from mmspec.cli.arguments import checked
from mmspec.cli.merging import add_commands
from mmspec.registry import add_file, installed

#: Names of our commands; each is a function of that name in a module of that name.
COMMANDS = ("methods", "plugins", "doctor", "check", "new", "verify", "card", "convert", "run", "serve")


def build() -> typer.Typer:
    """The application with all commands; imports no torch."""
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


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mmspec {mmspec.__version__}")
        raise typer.Exit


def _add_plugins(context: typer.Context, files: list[Path]) -> list[Path]:
    """Add plugins of one file, before a command is looked up: their own commands are found and listed by `--help`."""
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
