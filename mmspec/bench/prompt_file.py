"""A user's own prompts for a benchmark: a file of JSON lines."""

import json
from pathlib import Path

from mmspec.cli.places import text_of

MOST = 1000
"""A benchmark of more prompts would take days."""


def counted_or_read(given: str, most: int = 10) -> tuple[int, list[str] | None]:
    """What `--prompts` says: how many prompts there are, and the user's own if it names a file.

    Raises:
        ValueError: It is neither a number from 1 to `most` nor a file of prompts.
    """
    if given.isdecimal():
        if not 1 <= int(given) <= most:
            raise ValueError(f"--prompts is 1 to {most} prompts of ours, or a file; got {given}")
        return int(given), None
    own = read(Path(given))
    return len(own), own


def read(path: Path) -> list[str]:
    """The prompts of a file: `{"prompt": "…"}` in every line.

    Raises:
        ValueError: There is no such file, a line is something else, or there are too many.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}; --prompts takes a number, such as 4, or JSON lines")
    found = []
    for number, line in enumerate(text_of(path).splitlines(), 1):
        if line.strip():
            found.append(_prompt(line, f"line {number} of {path}"))
    if len(found) > MOST:
        raise ValueError(f"{path} has more than {MOST} prompts; take some of them")
    if not found:
        raise ValueError(f"{path} is empty")
    return found


def _prompt(line: str, where: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, TypeError, KeyError):
        prompt = None
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f'{where} is no prompt: {{"prompt": "…"}}')
    return prompt
