"""The subjects of a benchmark: methods, by name or by modality, and the user's own prompts, in a file of JSON lines."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mmspec.registry import Pairing, installed, pair
from mmspec.registry.matching import named
from mmspec.report.result import PLAIN
from mmspec.untrusted import numbered_json_lines


def chosen_methods(names: str | None, more: Collection[str] = ()) -> list[str] | None:
    """The names that a user gave, methods or `more` of this benchmark, checked before anything is loaded."""
    if names is None:
        return None
    chosen = names.split(",")
    for name in chosen:
        if name not in more:
            named(installed(), name)
    return chosen


def own_methods(model: Any) -> list[Pairing]:
    """The methods that fit a live model, of the plugin that its target is from; plain decoding is left out."""
    registry = installed()
    target = registry.target_for(model)
    assert target is not None
    methods = [m for m in registry.components("method") if m.owner == target.owner and m.name != PLAIN]
    paired = [pair(registry, method, offers=target.offers) for method in methods]
    return [p for p in paired if not p.missing(target.offers)]


def decoder_arguments(how: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `enable` as `decoder_for` takes them: options of components are in a mapping of their own."""
    from mmspec.api.refusals import ARGUMENTS  # with torch, which the command line does not need

    own = {name: how[name] for name in ARGUMENTS if name in how}
    return own | {"options": {name: value for name, value in how.items() if name not in own}}


MOST = 1000  # a benchmark of more prompts would take days


def counted_or_read(given: str, most: int = 10, chats: bool = False) -> tuple[int, list[Any] | None]:
    """The meaning of `--prompts`: a number of prompts, and the user's own if it names a file."""
    if given.isdecimal():
        if not 1 <= int(given) <= most:
            raise ValueError(f"--prompts is 1 to {most} prompts of ours, or a file; got {given}")
        return int(given), None
    own = read(Path(given), chats)
    return len(own), own


def read(path: Path, chats: bool) -> list[Any]:
    """The prompts of a file, one a line: a text `{"prompt": "…"}`.

    With `chats` also a conversation: `{"messages": [{"role": "user", "content": "…"}]}`, up to the last question; or
    `{"turns": ["…"]}`, of which the first question is asked. Conversations come as lists of messages.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}; --prompts takes a number, such as 4, or JSON lines")
    found: list[Any] = []
    form = '{"prompt": "…"}' + ', {"turns": ["…"]} or {"messages": [{"role": "user", "content": "…"}]}' * chats
    try:
        lines = numbered_json_lines(path)
    except ValueError as error:
        raise ValueError(f"{error}; a prompt is a line {form}") from error
    for number, line in lines:
        asked = prompt if isinstance(prompt := line.get("prompt"), str) else _conversation(line) if chats else None
        if not asked or (isinstance(asked, str) and not asked.strip()):
            raise ValueError(f"line {number} of {path} is no prompt: {form}")
        found.append(asked)
    if len(found) > MOST:
        raise ValueError(f"{path} has more than {MOST} prompts; take some of them")
    if not found:
        raise ValueError(f"{path} is empty")
    return found


def _conversation(line: Mapping[str, Any]) -> list[dict[str, str]] | None:
    """The messages of a line up to its last question; None if it has none."""
    turns, messages = line.get("turns"), line.get("messages")
    if isinstance(turns, list) and turns and isinstance(turns[0], str) and turns[0].strip():
        return [{"role": "user", "content": turns[0]}]
    kept: list[Any] = messages if isinstance(messages, list) and all(isinstance(m, dict) for m in messages) else []
    while kept and kept[-1].get("role") != "user":
        kept = kept[:-1]
    words = all(isinstance(m.get(part), str) for m in kept for part in ("role", "content"))
    return [{"role": m["role"], "content": m["content"]} for m in kept] if kept and words else None
