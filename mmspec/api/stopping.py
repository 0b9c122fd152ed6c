"""Stopping criteria, stop strings, streamers, `output_scores` with several tokens per round, as transformers has them.

The host waits for what they say once per token, as a criterion may count its calls and must not be asked after the end;
for stop strings, which judge each row by its own tokens alone, it waits once per round.

Rows run ahead of each other. A criterion is called for new token t once all open rows have it: once per token, in
order, with ids `[batch, prompt + t]` in which rows that ended are padded. This adds no rounds, as a call lasts as long
as its slowest row anyway. Rows that turn out to have stopped earlier are cut there.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList, StopStringCriteria
from transformers.generation import utils

from mmspec.core.state import State
from mmspec.core.transfer import on_device

_IN_LOOP = (MaxLengthCriteria, EosTokenCriteria)
"""Criteria that the loop itself applies on the device; subclasses of them are called as any other."""


def limit_of(criteria: Sequence[Any], prompt: int, max_length: int) -> int:
    """Most new tokens after a prompt of `prompt` tokens; a user's `MaxLengthCriteria` replaces the configuration's
    `max_length`, which counts the prompt, too.
    """
    lengths = [c.max_length for c in criteria if type(c) is MaxLengthCriteria]
    return max(1, ceil(min(lengths, default=max_length)) - prompt)  # transformers, too, checks after the first token


def notices_late(device: torch.device, cache: Any, returned: bool) -> bool:
    """True if stock `generate` notices one step late that all rows have ended, as on Apple's GPUs; `returned`: the
    caller gets the cache.
    """
    check = vars(utils).get("DeferredStopCheck")  # not in all versions of transformers that are supported
    return check is not None and check.is_supported(device, cache, returned, is_assistant=False)


def end_ids(criteria: Sequence[Any]) -> list[int]:
    return [end for c in criteria if type(c) is EosTokenCriteria for end in c.eos_token_id.flatten().tolist()]


def with_stop_strings(criteria: Sequence[Any] | None, strings: str | list[str] | None, tokenizer: Any) -> Sequence[Any]:
    """The criteria, and one for stop strings where there are any; a user's own `StopStringCriteria` takes precedence.
    Refuses stop strings without a tokenizer.
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


class StepScores:
    """The target's scores of every emitted token.

    After its end a row has score 0 for the padding token and -inf for all others, so that padding adds nothing to a sum
    of transition scores. (transformers returns there what the model predicts after padding.)

    Scores are those after the logits processors if `processed` (`output_scores`), else those before them
    (`output_logits`).
    """

    def __init__(self, processed: bool, rows: int, pad: int) -> None:
        self._processed = processed
        self._pad = pad
        self._rows: list[list[Tensor]] = [[] for _ in range(rows)]

    def step(self, state: State) -> None:
        """Add the scores of what the last round emitted."""
        counts = [max(0, now - len(row)) for now, row in zip(state.host.emitted, self._rows, strict=True)]
        for row, new in zip(self._rows, _emitted_scores(state, counts, self._processed).split(counts), strict=True):
            row.extend(new)

    def at(self, step: int, lengths: Sequence[int]) -> Tensor:
        """Scores of new token `step`, counted from 0, in rows of `lengths` new tokens: `[batch, vocab]`."""
        example = next(row[0] for row in self._rows if row)
        ended = torch.full_like(example, -torch.inf)
        ended[self._pad] = 0
        rows = zip(self._rows, lengths, strict=True)
        return torch.stack([row[step] if step < length else ended for row, length in rows])

    def all(self, lengths: Sequence[int]) -> tuple[Tensor, ...]:
        """Scores of all steps up to the longest row, `[batch, vocab]` each."""
        return tuple(self.at(step, lengths) for step in range(max(lengths)))


def _emitted_scores(state: State, counts: Sequence[int], processed: bool) -> Tensor:
    """A copy of the scores of the first `counts` tokens that the last round emitted in each row, `[tokens, vocab]`:
    those at the root, then those along the accepted path. Refuses a target without logits.
    """
    assert state.step is not None
    scores = state.step.scores.logits if processed else state.step.scores.unprocessed
    if scores is None:
        raise ValueError("this target yields distributions, not logits: there are no scores to return")
    places = [(row, slot) for row, count in enumerate(counts) for slot in range(count)]
    rows, slots = on_device(places, scores.device, torch.int64).reshape(-1, 2).T
    nodes = torch.nn.functional.pad(state.step.verdict.path.clamp(min=0), (1, 0))[rows, slots]
    return scores[rows, nodes]


class StoppingMonitor:
    """Calls the criteria that the loop does not apply itself, and ends rows; without `scores` criteria get None."""

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
        """True if there is a criterion to ask after a round."""
        return bool(self._criteria)

    def step(self, state: State) -> None:
        """After a round: call the criteria for every token that all open rows have by now."""
        if not self._criteria:
            return
        while not all(self._over):
            # Computed for every token: a row that is cut here may have been the last open one.
            going = [n for n, done in zip(state.host.emitted, state.host.done, strict=True) if not done]
            known = min(going, default=max(state.host.emitted))
            if known <= self._seen:
                return
            counts = range(self._seen + 1, (known if self._together else self._seen + 1) + 1)
            asked = torch.stack([self._asked(state, count) for count in counts]).tolist()
            for count, stops in zip(counts, asked, strict=True):
                if not all(self._over):
                    self._end_rows(state, stops, count)
            self._seen = counts[-1]

    def _asked(self, state: State, count: int) -> Tensor:
        """The criteria's answer about new token `count`: `[batch]` bool."""
        if self._step_scores is not None:
            new = self._step_scores.at(count - 1, state.host.emitted)
            self._seen_scores = (*(self._seen_scores or ()), new)
        return self._criteria(self._ids(state, count), self._seen_scores).reshape(state.rows)

    def _end_rows(self, state: State, stops: list[bool], count: int) -> None:
        """End the rows of `stops` with their new token `count`."""
        for row, stop in enumerate(stops):
            ended = state.host.done[row] and state.host.emitted[row] <= count
            if stop and not self._over[row] and not ended and self._pads_rows:
                state.stop(row, count)
            self._over[row] |= stop or ended
        if all(self._over) and not self._pads_rows:
            for row in range(state.rows):
                state.stop(row, count)

    def _ids(self, state: State, count: int) -> Tensor:
        ids = state.history[:, : state.prompt_length + count]
        place = torch.arange(ids.shape[1], device=ids.device)
        return ids.masked_fill(place >= state.known[:, None], self._pad)


UNFINISHED = "\ufffd"  # a character whose bytes have not all come
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
    """The beginning of a text that stays as it is, whatever follows (`over`: nothing will): without what may become a
    stop string, or one of `changing`, which become others once they are complete.
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
        """The text that can be shown now beside what was shown before, of all new tokens `ids [n]`; `over`: no others
        will come.
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


@runtime_checkable
class TakesLogits(Protocol):
    """A streamer that also reads the model's scores, so that nobody has to keep those of a whole text."""

    def take_logits(self, logits: Tensor) -> None:
        """The scores `[tokens, vocab]`, before logits processors, of the tokens that the next calls of `put` give."""


class Stream:
    """A streamer, if there is one, behind a prompt `ids [1, length]`, and the number of tokens that it was given."""

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
            if isinstance(self._streamer, TakesLogits):
                self._streamer.take_logits(_emitted_scores(state, [len(units) - self._sent], processed=False))
            for token in units[self._sent :].cpu().split(1):  # [1] each, as many streamers read one token a time
                self._streamer.put(token)
            self._sent = len(units)

    def end(self) -> None:
        """Tell the streamer that the text is complete."""
        if self._streamer is not None:
            self._streamer.end()
