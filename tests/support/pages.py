"""The code of documents."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import typer

from mmspec.cli.app import build

_BLOCK = re.compile(r"^(?:<!-- a fragment: ([^\n]+) -->\n)?```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block; `fragment` says why it cannot run by itself, in a comment above it; "": it runs."""

    fragment: str
    language: str
    code: str


def fenced(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [Block(*found) for found in _BLOCK.findall(page.read_text())]


def blocks(page: Path) -> list[str]:
    """The blocks of Python of a page that run, in order."""
    return [block.code for block in fenced(page) if block.language == "python" and not block.fragment]


def refuse_unknown(words: list[str]) -> None:
    """Refuse the words behind `mmspec` that name a command, an option or an argument which there is not."""
    command: Any = typer.main.get_command(build())
    while True:
        context = command.context_class(command)
        _, words, _ = command.make_parser(context).parse_args(words)
        if "commands" not in vars(command) or not words:
            break
        _, command, words = command.resolve_command(context, words)
    assert not words, f"{words} is not expected"
