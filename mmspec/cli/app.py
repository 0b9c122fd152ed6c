"""The typer application: our commands, then those that plugins add.

A plugin adds commands to an application of its own; they are checked, then moved into ours. A plugin never holds the
application of the others, so it can neither take the name of a command nor remove one. If one of its commands cannot be
built or shown, all of them are refused, and the plugin is listed with the reason.
"""

import copy
import importlib
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command_name, get_group

import mmspec
from mmspec.cli.arguments import checked
from mmspec.registry import Plugin, Registry, add_file, installed
from mmspec.registry.fields import NAME
from mmspec.registry.printable import refuse_control

#: Names of our commands; each is a function of that name in a module of that name.
COMMANDS = ("fetch", "convert", "run", "serve", "methods", "verify", "doctor", "new", "check", "plugins")

#: What `--help` shows together; other plugins' commands stand above.
PANELS = {
    "Use": ("fetch", "convert", "generate", "chat", "run", "serve", "play", "view", "demo"),
    "Choose and measure": ("methods", "tune", "bench", "plan", "verify", "doctor"),
    "Train": ("train",),
    "Make plugins": ("new", "check", "plugins"),
}


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
    entries: list[Any] = [*app.registered_commands, *app.registered_groups]
    for info in entries:
        name = info.name or get_command_name(info.callback.__name__)
        info.rich_help_panel = next((panel for panel, names in PANELS.items() if name in names), None)
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


OURS = "mmspec"  # the distribution of our own plugins
_LAYOUT = re.compile(r"[\n\b\f]")
"""Control characters that help texts may hold: line breaks, and the two marks that click interprets."""


def add_commands(app: typer.Typer, registry: Registry, plugin: Plugin) -> None:
    """Add a plugin's commands, all or none; a failure is recorded with the plugin."""
    own = typer.Typer()
    with registry.blaming(plugin.name, "mmspec_commands"):
        registry.call(plugin.name, "mmspec_commands", app=own)
        if own.registered_callback is not None:
            raise ValueError("a plugin adds commands and groups; the options of `mmspec` itself are not its own")
        if own.registered_commands or own.registered_groups:
            _refuse_unfit(get_group(own))
            _refuse_taken(app, own, "mmspec")
            if plugin.distribution == OURS:
                _check_arguments(own)
            _move(app, own)


def _refuse_unfit(group: TyperGroup) -> None:
    """Refuse names and texts that would break `mmspec --help`."""
    for name, command in group.commands.items():
        if not NAME.fullmatch(name):
            raise ValueError(f"a command's name is lower-case words joined by '-', '.' or '_', not {name!r}")
        texts = [command.help, command.short_help, command.epilog]
        for parameter in command.params:
            texts += [parameter.help, str(parameter.metavar or "")]  # type: ignore[attr-defined]
        for text in filter(None, texts):
            refuse_control(_LAYOUT.sub(" ", text), f"the help of the command {name!r}")
            if "[" in text:
                _refuse_markup(text, name)
        if isinstance(command, TyperGroup):
            _refuse_unfit(command)


def _refuse_markup(text: str, name: str) -> None:
    """Refuse help that is no valid markup of rich, which typer would fail to render."""
    from rich.errors import MarkupError
    from rich.markup import render

    try:
        render(text)
    except MarkupError as error:
        raise ValueError(f"the help of the command {name!r} is no markup of rich: {error}") from error


def _refuse_taken(app: typer.Typer, own: typer.Typer, where: str) -> None:
    """Refuse a command whose name is taken; groups of one name are shared."""
    commands, groups = _commands(app), _groups(app)
    for name in _commands(own):
        if name in commands or name in groups:
            raise ValueError(f"there is a command `{where} {name}` already")
    for name, group in _groups(own).items():
        if name in commands:
            raise ValueError(f"there is a command `{where} {name}` already, which is no group")
        if name in groups:
            _refuse_taken(groups[name], group, f"{where} {name}")


def _move(app: typer.Typer, own: typer.Typer) -> None:
    groups = _groups(app)
    app.registered_commands += own.registered_commands
    for info, (name, group) in zip(own.registered_groups, _groups(own).items(), strict=True):
        if name in groups:
            _move(groups[name], group)
        else:  # a copy: other plugins must not fill the plugin's own object
            added = copy.copy(info)
            added.typer_instance = copy.copy(group)
            added.typer_instance.registered_commands = list(group.registered_commands)
            added.typer_instance.registered_groups = list(group.registered_groups)
            app.registered_groups.append(added)


def _check_arguments(own: typer.Typer) -> None:
    """Check the arguments of our own plugins' commands, too: parameters of one name mean one thing there."""
    for info in own.registered_commands:
        info.callback = checked(info.callback) if info.callback else None
    for group in _groups(own).values():
        _check_arguments(group)


def _commands(app: typer.Typer) -> set[str]:
    return {info.name or get_command_name(info.callback.__name__) for info in app.registered_commands if info.callback}


def _groups(app: typer.Typer) -> dict[str, typer.Typer]:
    named = {}
    for info in app.registered_groups:
        if not isinstance(info.name, str) or info.typer_instance is None or info.name in named:
            raise ValueError("a group of commands has a name, given once to add_typer(…, name=…)")
        named[info.name] = info.typer_instance
    return named
