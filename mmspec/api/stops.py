"""Strings at which a text ends, and the pieces in which a text is shown while it is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

UNFINISHED = "\ufffd"
"""What a character looks like whose bytes have not all come."""


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """The strings of an argument `stop`.

    Raises:
        ValueError: It is no string, or an empty one.
    """
    if stop is None:
        return ()
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if not strings or not all(isinstance(string, str) and string for string in strings):
        raise ValueError(f"stop is a string at which texts end, or a list of some, none of them empty; not {stop!r}")
    return strings


def cut(text: str, stops: Sequence[str]) -> str:
    """A text up to the first of the strings at which it ends."""
    ends = [place for place in map(text.find, stops) if place >= 0]
    return text[: min(ends, default=len(text))]


def settled(text: str, stops: Sequence[str], over: bool) -> str:
    """The beginning of a text that stays as it is, whatever follows: without what may become a stop string.

    Args:
        text: The text as far as it is written.
        stops: The strings at which it ends.
        over: Whether nothing will follow.
    """
    kept = cut(text, stops)
    if over or kept != text:
        return kept
    unfinished = len(text) - len(text.rstrip(UNFINISHED))
    begun = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
    return text[: len(text) - max([unfinished, *begun])]


CONTEXT = 8
"""Tokens before a line that are decoded with it, since tokens may look otherwise at the beginning of a text."""


@dataclass
class Pieces:
    """A text as it is written: what can be shown of it is never taken back."""

    tokenizer: Any  # makes text of tokens
    stops: Sequence[str] = ()  # the strings at which the text ends; they are not shown
    begun: int = 0  # tokens of the lines that are shown completely; they are not decoded again
    shown: str = ""  # what is shown of the present line

    def more(self, ids: Tensor, over: bool) -> str:
        """What can be shown now beside what was shown before.

        Args:
            ids: `[n]`: all new tokens of the text.
            over: Whether no others will come.
        """
        before = self._decoded(ids[: self.begun])
        text = self._decoded(ids)[len(before) :]
        kept = settled(text, self.stops, over)
        piece = kept[len(self.shown) :] if kept.startswith(self.shown) else ""
        self.shown += piece
        if self.shown == text and text.endswith("\n"):
            self.begun, self.shown = len(ids), ""
        return piece

    def _decoded(self, ids: Tensor) -> str:
        return str(self.tokenizer.decode(ids[max(0, self.begun - CONTEXT) :], skip_special_tokens=True))
