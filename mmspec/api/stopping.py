"""transformers' stopping criteria over several tokens a round: every criterion sees what it would see in transformers.

Rows run ahead of each other. A criterion is asked about new token t once all open rows have it: once a step, in order,
with ids `[batch, prompt + t]` and rows that ended padded. No round is added by that: the call lasts as long as its
slowest row anyway. Rows that are found to have stopped earlier are cut there.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
from torch import Tensor
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList, StopStringCriteria

from mmspec.api.kept import Kept
from mmspec.core.state import State

_CORES = (MaxLengthCriteria, EosTokenCriteria)
"""What the loop itself does on the device, when nobody has subclassed it."""


def limit_of(criteria: Sequence[Any], prompt: int, most: int) -> int:
    """New tokens wanted at most; a criterion of the user's may have replaced the configuration's length `most`."""
    lengths = [c.max_length for c in criteria if type(c) is MaxLengthCriteria]
    return max(1, ceil(min(lengths, default=most)) - prompt)  # transformers too looks only after the first token


def ends_of(criteria: Sequence[Any]) -> list[int]:
    """Ids that end a row."""
    return [end for c in criteria if type(c) is EosTokenCriteria for end in c.eos_token_id.flatten().tolist()]


def with_stop_strings(criteria: Sequence[Any] | None, strings: str | list[str] | None, tokenizer: Any) -> Sequence[Any]:
    """The criteria, and one for stop strings where there are any; a user's own criterion of that class stands.

    Raises:
        ValueError: There is no tokenizer to read them with.
    """
    whole = StoppingCriteriaList(criteria or ())
    if strings is not None and not any(type(c) is StopStringCriteria for c in whole):
        if tokenizer is None:
            raise ValueError("stop_strings= needs the model's tokenizer= too: it is what finds them in tokens")
        whole.append(StopStringCriteria(tokenizer, strings))
    return whole


class Stops:
    """Asks the criteria that the loop does not know, and ends rows.

    Args:
        criteria: Of the call, those of the loop included.
        rows: Rows of the batch.
        pad: The padding token.
        kept: Scores for criteria to read; None hands them None, as transformers does where scores are not asked for.
    """

    def __init__(self, criteria: Sequence[Any], rows: int, pad: int, kept: Kept | None) -> None:
        self._criteria = StoppingCriteriaList(c for c in criteria if type(c) not in _CORES)
        # Without an end token transformers lets rows that stopped go on until all have.
        self._padded = any(hasattr(c, "eos_token_id") for c in criteria)
        self._pad = pad
        self._kept = kept
        self._scores: tuple[Tensor, ...] | None = None if kept is None else ()
        self._over = [False] * rows
        self._seen = 0

    def step(self, state: State) -> None:
        """After a sync: ask about every token that all open rows have by now."""
        if not self._criteria:
            return
        while not all(self._over):
            # Anew for every token: a row that is cut here may have been the last that was open.
            going = [n for n, done in zip(state.host_emitted, state.host_done, strict=True) if not done]
            count = self._seen + 1
            if count > min(going, default=max(state.host_emitted)):
                return
            if self._kept is not None:
                self._scores = (*(self._scores or ()), self._kept.at(count - 1, state.host_emitted))
            stops = self._criteria(self._ids(state, count), self._scores).reshape(state.rows).tolist()
            self._settle(state, stops, count)
            self._seen = count

    def _settle(self, state: State, stops: list[bool], count: int) -> None:
        """Rows that stop with their token `count`."""
        for row, stop in enumerate(stops):
            ended = state.host_done[row] and state.host_emitted[row] <= count
            if stop and not self._over[row] and not ended and self._padded:
                state.stop(row, count)
            self._over[row] |= stop or ended
        if all(self._over) and not self._padded:
            for row in range(state.rows):
                state.stop(row, count)

    def _ids(self, state: State, count: int) -> Tensor:
        """Prompt and the first `count` new tokens, as transformers has them at that step."""
        ids = state.history[:, : state.prompt_length + count]
        place = torch.arange(ids.shape[1], device=ids.device)
        return ids.masked_fill(place >= state.known[:, None], self._pad)
