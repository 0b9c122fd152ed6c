"""transformers' stopping criteria with several tokens per round: every criterion sees what it sees in transformers.

The host waits for what they say once per token, as a criterion may count its calls and must not be asked after the end;
for stop strings, which judge each row by its own tokens alone, it waits once per round.

Rows run ahead of each other. A criterion is called for new token t once all open rows have it: once per token, in
order, with ids `[batch, prompt + t]` in which rows that ended are padded. This adds no rounds, as a call lasts as long
as its slowest row anyway. Rows that turn out to have stopped earlier are cut there.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
from torch import Tensor
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList, StopStringCriteria
from transformers.generation import utils

from mmspec.api.step_scores import StepScores
from mmspec.core.state import State

_IN_LOOP = (MaxLengthCriteria, EosTokenCriteria)
"""Criteria that the loop itself applies on the device; subclasses of them are called as any other."""


def limit_of(criteria: Sequence[Any], prompt: int, max_length: int) -> int:
    """Most new tokens after a prompt of `prompt` tokens.

    Args:
        criteria: Criteria of the call; a `MaxLengthCriteria` of the user's replaces the configuration's length.
        prompt: Tokens of the prompt.
        max_length: The configuration's length, prompt included.
    """
    lengths = [c.max_length for c in criteria if type(c) is MaxLengthCriteria]
    return max(1, ceil(min(lengths, default=max_length)) - prompt)  # transformers, too, checks after the first token


def notices_late(device: torch.device, cache: Any, returned: bool) -> bool:
    """Whether stock `generate` notices one step late that all rows have ended, as it does on Apple's GPUs.

    Args:
        device: The device of the ids.
        cache: The call's cache.
        returned: Whether the caller gets the cache.
    """
    check = vars(utils).get("DeferredStopCheck")  # not in all versions of transformers that are supported
    return check is not None and check.is_supported(device, cache, returned, is_assistant=False)


def end_ids(criteria: Sequence[Any]) -> list[int]:
    """Token ids that end a row."""
    return [end for c in criteria if type(c) is EosTokenCriteria for end in c.eos_token_id.flatten().tolist()]


def with_stop_strings(criteria: Sequence[Any] | None, strings: str | list[str] | None, tokenizer: Any) -> Sequence[Any]:
    """The criteria, and one for stop strings where there are any; a user's own `StopStringCriteria` takes precedence.

    Raises:
        ValueError: There are stop strings and no tokenizer.
    """
    extended = StoppingCriteriaList(criteria or ())
    if strings is not None and not any(type(c) is StopStringCriteria for c in extended):
        if tokenizer is None:
            raise ValueError("stop_strings= needs the model's tokenizer= too: it is what finds them in tokens")
        extended.append(StopStringCriteria(tokenizer, strings))
    return extended


_STATELESS = (StopStringCriteria,)
"""Criteria that decide about a row by its own tokens and have no state, so that one may ask them about several tokens
before it knows what they say about the first; subclasses may have one."""


class StoppingMonitor:
    """Calls the criteria that the loop does not apply itself, and ends rows.

    Args:
        criteria: All criteria of the call.
        rows: Rows of the batch.
        pad: The padding token.
        scores: Scores for the criteria to read; None: they get None, as in transformers without `output_scores`.
    """

    def __init__(self, criteria: Sequence[Any], rows: int, pad: int, scores: StepScores | None) -> None:
        self._criteria = StoppingCriteriaList(c for c in criteria if type(c) not in _IN_LOOP)
        # As transformers does: without an end token, rows that stopped go on until all have.
        self._pads_rows = any(hasattr(c, "eos_token_id") for c in criteria)
        self._together = all(type(c) in _STATELESS for c in self._criteria)
        self._pad = pad
        self._step_scores = scores
        self._seen_scores: tuple[Tensor, ...] | None = None if scores is None else ()
        self._over = [False] * rows
        self._seen = 0

    @property
    def watches(self) -> bool:
        """Whether there is a criterion to ask after a round."""
        return bool(self._criteria)

    def step(self, state: State) -> None:
        """After a round: call the criteria for every token that all open rows have by now."""
        if not self._criteria:
            return
        while not all(self._over):
            # Computed for every token: a row that is cut here may have been the last open one.
            going = [n for n, done in zip(state.host_emitted, state.host_done, strict=True) if not done]
            known = min(going, default=max(state.host_emitted))
            if known <= self._seen:
                return
            counts = range(self._seen + 1, (known if self._together else self._seen + 1) + 1)
            asked = torch.stack([self._asked(state, count) for count in counts]).tolist()
            for count, stops in zip(counts, asked, strict=True):
                if not all(self._over):
                    self._end_rows(state, stops, count)
            self._seen = counts[-1]

    def _asked(self, state: State, count: int) -> Tensor:
        """What the criteria say about new token `count`: `[batch]` bool."""
        if self._step_scores is not None:
            new = self._step_scores.at(count - 1, state.host_emitted)
            self._seen_scores = (*(self._seen_scores or ()), new)
        return self._criteria(self._ids(state, count), self._seen_scores).reshape(state.rows)

    def _end_rows(self, state: State, stops: list[bool], count: int) -> None:
        """End the rows of `stops` with their new token `count`."""
        for row, stop in enumerate(stops):
            ended = state.host_done[row] and state.host_emitted[row] <= count
            if stop and not self._over[row] and not ended and self._pads_rows:
                state.stop(row, count)
            self._over[row] |= stop or ended
        if all(self._over) and not self._pads_rows:
            for row in range(state.rows):
                state.stop(row, count)

    def _ids(self, state: State, count: int) -> Tensor:
        """Prompt and the first `count` new tokens, as transformers has them at that step."""
        ids = state.history[:, : state.prompt_length + count]
        place = torch.arange(ids.shape[1], device=ids.device)
        return ids.masked_fill(place >= state.known[:, None], self._pad)
