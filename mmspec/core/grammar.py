"""A grammar as a logits processor that drafts may run ahead of: every node of a draft is scored under its own state.

Matchers of structured generation keep a state between calls, and so forbid drafts. One that can go back need not: for
every history that it is asked about, this processor goes back to what that history shares with the last one, and then
forward along the rest. So it is a pure function of ids and scores, in unmodified `generate`, too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.core.matchers import Foresees, Matcher, Rollback, as_matcher
from mmspec.core.processors import HISTORY


class Followed:
    """A matcher, which stood at the beginning of a text, and the units that it has accepted."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher, self._units = matcher, list[int]()

    def go_to(self, units: Sequence[int]) -> bool:
        """Go to the state behind `units`; False if the grammar does not allow them: then it stands where it left them.

        Raises:
            ValueError: The matcher would have to go back, and cannot.
        """
        same = 0
        while same < min(len(units), len(self._units)) and units[same] == self._units[same]:
            same += 1
        if same < len(self._units):
            if not isinstance(self.matcher, Rollback):
                raise ValueError(f"{type(self.matcher).__name__} cannot go back (it has no rollback), and has to")
            self.matcher.rollback(len(self._units) - same)
            del self._units[same:]
        return len(self.taken(units[same:])) == len(units) - same

    def taken(self, units: Sequence[int]) -> list[int]:
        """Go on along `units` as far as the grammar allows them, and return these."""
        taken = list[int]()
        for unit in units:
            if not self.matcher.accept(unit):
                break
            taken.append(unit)
        self._units += taken
        return taken

    def forced(self) -> Sequence[int]:
        """The next units, as far as the grammar decides them."""
        if isinstance(self.matcher, Foresees) and (foreseen := self.matcher.forced()):
            return foreseen
        allowed = self.matcher.allowed()
        return [int(allowed.int().argmax())] if allowed is not None and int(allowed.sum()) == 1 else []


class Grammar:
    """Lets pass what a grammar allows, for one call of `generate`; every row has a matcher of its own.

    Args:
        make: Makes a matcher that stands at the beginning of a text: a `Matcher`, an `xgrammar.GrammarMatcher` or an
            `llguidance.LLMatcher`. Without `rollback`, calls run without drafts and say so.
        tokenizer: The model's; with it the method `grammar` drafts the text that a grammar of xgrammar decides.

    Raises:
        TypeError: `make` makes something else.

    Example:
        ```python
        grammar = mmspec.Grammar(lambda: xgrammar.GrammarMatcher(compiled), tokenizer)
        with mmspec.enable(model, "grammar"):
            output = model.generate(**inputs, logits_processor=[grammar])
        ```
    """

    def __init__(self, make: Callable[[], Any], tokenizer: Any = None) -> None:
        self._make, self._tokenizer = make, tokenizer
        self._prompts = list[list[int]]()
        self._rows = list[Followed]()
        self.speculative = HISTORY if isinstance(as_matcher(make(), 1, None), Rollback) else None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores `[rows, vocab]` after `input_ids [rows, length]`, -inf where the grammar allows no unit.

        Scores behind units that it does not allow are left as they are: no text goes there.

        Raises:
            ValueError: These are rows of another call.
        """
        rows, vocab = input_ids.tolist(), scores.shape[1]
        self._begin(rows, vocab)
        kept = [self._allowed(b, row, vocab) for b, row in enumerate(rows)]
        return scores.masked_fill(~torch.stack(kept).to(scores.device), float("-inf"))

    def behind(self, row: int, emitted: Sequence[int]) -> Followed | None:
        """The matcher of a row behind what the call emitted; None if the text has left the grammar, or has ended."""
        followed = self._rows[row]
        return followed if followed.go_to(emitted) else None

    def _begin(self, rows: list[list[int]], vocab: int) -> None:
        if not self._rows:
            self._prompts = rows
            self._rows = [Followed(as_matcher(self._make(), vocab, self._tokenizer)) for _ in rows]
        start = len(self._prompts[0])
        if [row[:start] for row in rows] != self._prompts:
            raise ValueError("a Grammar follows one call of generate, whose prompts it has seen; make another one")

    def _allowed(self, number: int, row: list[int], vocab: int) -> Tensor:
        """`[vocab]` bool."""
        followed = self._rows[number]
        inside = followed.go_to(row[len(self._prompts[number]) :])
        allowed = followed.matcher.allowed() if inside else None
        if allowed is None:
            return torch.ones(vocab, dtype=torch.bool)
        return torch.nn.functional.pad(allowed[:vocab], (0, max(vocab - len(allowed), 0)))
