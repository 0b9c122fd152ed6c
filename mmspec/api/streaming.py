"""Feeds one of transformers' streamers as stock decoding does, with one token a `put`, however many a round emitted."""

from typing import Any

from torch import Tensor

from mmspec.core.state import State


class Stream:
    """A streamer and the number of tokens that it was given.

    Args:
        streamer: An object with `put` and `end`; None streams nothing.
        ids: Prompt `[1, length]`.

    Raises:
        ValueError: The prompt has several rows.
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
