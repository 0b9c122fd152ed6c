"""Strings at which a text ends, and the pieces in which a text is shown while it is written."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.core.state import State

UNFINISHED = "\ufffd"
"""A character whose bytes have not all come."""
BYTE = re.compile("<0x[0-9A-F]{2}>")
"""A token of one byte beside tokens of characters: one byte that is no character spoils all bytes around it."""
JOINED = (" ' ", " 'm", " 's", " 've", " 're", " n't", " n ' t")
"""Ends that lose a space once they are complete, where a tokenizer cleans spaces up."""


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """The strings of an argument `stop`."""
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


def settled(text: str, stops: Sequence[str], over: bool, changing: Sequence[str] = ()) -> str:
    """The beginning of a text that stays as it is, whatever follows: without what may become a stop string.

    `over` says that nothing will follow; a string of `changing` becomes another one once it is complete.
    """
    if over:
        return cut(text, stops)
    text = text.rstrip(UNFINISHED)  # before all else: the beginning of a stop string may stand before it
    text = text[: len(text) - _begun(text, changing)]
    return text[: min(len(cut(text, stops)), len(text) - _begun(text, stops))]


def _begun(text: str, strings: Sequence[str]) -> int:
    """The length of the longest end of a text that is the beginning of one of the strings."""
    return max((size for each in strings for size in range(1, len(each)) if text.endswith(each[:size])), default=0)


CONTEXT = 8
"""Tokens before new ones that are decoded with them, since tokens may look otherwise at the beginning of a text."""


@dataclass
class Pieces:
    """A text as it is written: what can be shown of it is never taken back."""

    tokenizer: Any  # makes text of tokens
    stops: Sequence[str] = ()  # the strings at which the text ends; they are not shown
    begun: int = 0  # tokens that are shown completely; they are not decoded again
    shown: str = ""  # what is shown of the tokens after them

    def more(self, ids: Tensor, over: bool) -> str:
        """The text that can be shown now beside what was shown before.

        `ids` `[n]` are all new tokens of the text; `over` says that no others will come.
        """
        ids = ids.cpu()
        if not over:
            ids = ids[: self._between(len(ids), ids)]
        start = self._between(max(0, self.begun - CONTEXT), ids)
        before, text = (self._decoded(each) for each in (ids[start : self.begun], ids[start:]))
        text = text[len(before) :]
        changing = JOINED if self.tokenizer.clean_up_tokenization_spaces else ()
        kept = settled(text, self.stops, over, changing)
        piece = kept[len(self.shown) :] if kept.startswith(self.shown) else ""
        self.shown += piece
        if piece and self.shown == text:
            self.begun, self.shown = len(ids), ""
        return piece

    def _between(self, size: int, ids: Tensor) -> int:
        """The most of the first `size` tokens that do not end with a token of one byte, which others may join."""
        while size and BYTE.fullmatch(str(self.tokenizer.convert_ids_to_tokens(int(ids[size - 1])))):
            size -= 1
        return size

    def _decoded(self, ids: Tensor) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


class Stream:
    """A streamer and the number of tokens that it was given.

    Without a streamer nothing is streamed; the prompt `ids` is `[1, length]`.
    """

    def __init__(self, streamer: Any, ids: Tensor) -> None:
        if streamer is not None and len(ids) > 1:
            raise ValueError(f"a streamer takes a batch of one, got {len(ids)} rows")
        self._streamer = streamer
        self._prompt = ids
        self._sent = 0

    def step(self, state: State) -> None:
        """Send the tokens that are new, one by one; before the first ones, the prompt."""
        if self._streamer is not None:
            if not self._sent:  # not when the call begins: a call that is refused streams nothing
                self._streamer.put(self._prompt.cpu())
            units = state.output()[0]
            for token in units[self._sent :].cpu().split(1):  # [1] each, as many streamers read one token a time
                self._streamer.put(token)
            self._sent = len(units)

    def end(self) -> None:
        """Tell the streamer that the text is complete."""
        if self._streamer is not None:
            self._streamer.end()
