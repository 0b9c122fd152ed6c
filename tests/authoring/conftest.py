"""Plugins of one file join everybody's registry, as on the command line; here they are forgotten again."""

import sys
from collections.abc import Callable, Iterator

import pytest
from click.testing import Result
from typer.testing import CliRunner

from mmspec.cli.app import build
from mmspec.registry import installed


@pytest.fixture
def mmspec() -> Iterator[Callable[..., Result]]:
    """`mmspec(*arguments)`: the command line in this process, every time as if it were new."""
    modules, before = set(sys.modules), {plugin.name for plugin in installed().plugins()}

    def forget() -> None:
        for plugin in installed().plugins():
            if plugin.name not in before:
                installed().unregister(plugin.name)

    def run(*arguments: str) -> Result:
        try:
            return CliRunner().invoke(build(), arguments, env={"COLUMNS": "200"})
        finally:
            forget()

    yield run
    forget()
    for name in set(sys.modules) - modules:
        if name.startswith(("mmspec_", "my_")):
            del sys.modules[name]
