"""Suffix decoding: a draft is the most frequent continuation of the longest suffix that occurred before.

SuffixDecoding (Oliaro et al., arXiv 2411.04975), as a chain. Counts come from the row's own prompt and output, from the
output of earlier calls (`remember`), and from a corpus (`corpus`); the source that knows the longest suffix is used.
Rows of one prompt, the samples of `num_return_sequences`, have their counts in common (`siblings`): what one of them
wrote is a draft for those that come to the same suffix later. Rows of other prompts count for themselves.
The draft ends when the estimated probability of its whole path falls below a threshold, which is later behind a longer
suffix (the paper drafts a tree whose length is in proportion to the match).
Guarantee: drafts are point masses; exact under every rule that takes chains of them.
Knobs: a higher `threshold` drafts less and is accepted more often; a larger `min_match` drafts less often; a larger
`max_match` tells contexts apart better and costs memory; `siblings=False` makes a row's drafts depend on its own text
alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field

from mmspec.core.drafters.emitted import EmittedUnits, prompts_of
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.transfer import on_device
from mmspec.core.types import Draft, Step
from mmspec.kits.text.corpus import read_corpus
from mmspec.registry.options import option
from mmspec_text.drafters.suffix_statistics import (
    Guess,
    NgramCounts,
    RecentCounts,
    Statistics,
    SuffixArray,
    SuffixRow,
    longest_of,
)
from mmspec_text.specs import SUFFIX


@dataclass(frozen=True)
class SuffixOptions:
    """Options of `suffix`."""

    max_match: Annotated[int, Field(ge=1, le=64)] = option(
        8, "longest suffix that is looked for; counts take memory in proportion"
    )
    min_match: Annotated[int, Field(ge=1, le=64)] = option(1, "shortest suffix that is enough to draft")
    threshold: Annotated[float, Field(ge=0, lt=1)] = option(
        0.1, "stop where a path's estimated probability falls below; higher drafts less"
    )
    remember: Annotated[int, Field(ge=0)] = option(
        0, "tokens of earlier calls' output to keep counts of; 0: every call by itself"
    )
    siblings: bool = option(True, "whether rows of one prompt (num_return_sequences) draft from each other's text")
    corpus: Any = option(None, "a UTF-8 text file, a file of ids (.json, .safetensors), or a list of ids")
    tokenizer: Any = option(None, "for a corpus of text: the target's tokenizer, live or a model's name")

    def __post_init__(self) -> None:
        if self.min_match > self.max_match:
            raise ValueError(f"min_match ({self.min_match}) must not exceed max_match ({self.max_match})")


@dataclass
class SuffixMemory:
    """The memory of one call."""

    rows: list[SuffixRow]  # text and counts of every row
    emitted: EmittedUnits  # what the call emits


class Suffix:
    """Drafts from counts of n-grams."""

    needs, offers = SUFFIX.needs, SUFFIX.offers

    def __init__(self, options: SuffixOptions = SuffixOptions()) -> None:
        self.options = options
        self._sizes = options.min_match, options.max_match
        self._earlier = RecentCounts(options.remember, *self._sizes) if options.remember else None
        self._corpus = None
        if options.corpus is not None:
            self._corpus = SuffixArray(read_corpus(options.corpus, options.tokenizer), *self._sizes)

    def bind(self, target: Target) -> None:
        assert target.vocab is not None
        if self._corpus is not None:
            self._corpus.refuse_other_ids(target.vocab)

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> SuffixMemory:
        rows, of_prompt = list[SuffixRow](), dict[tuple[int, ...], NgramCounts]()
        for text in prompts_of(state):
            counts = of_prompt.get(tuple(text))
            if counts is None:
                counts = NgramCounts(*self._sizes)
                counts.extend([], text)
                if self.options.siblings and text:  # a prompt of embeddings has no ids that could be compared
                    of_prompt[tuple(text)] = counts
            rows.append(SuffixRow(text, counts))
        return SuffixMemory(rows, EmittedUnits(state))

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        rows = self.caught_up(state)
        drafts = [[] if done else self.continued(row, k) for row, done in zip(rows, state.host.done, strict=True)]
        width = max(map(len, drafts))
        filled = [draft + [(0, -math.inf)] * (width - len(draft)) for draft in drafts]
        # One transfer for both: float32 has all integers up to 2²⁴, and so many ids no vocabulary has.
        both = on_device(
            [[pair[part] for draft in filled for pair in draft] for part in (0, 1)], state.root.device, torch.float32
        )
        units, scores = both.view(2, state.rows, width)
        return Draft.chain(units.long(), valid=scores > -math.inf, score=scores)

    def observe(self, state: State, step: Step) -> None:
        state.memory.emitted.observe(state, step)

    def of_texts(self) -> "SuffixOfTexts":
        return SuffixOfTexts(self)

    def row(self) -> SuffixRow:
        """A row without text."""
        return SuffixRow([], NgramCounts(*self._sizes))

    def caught_up(self, state: State) -> list[SuffixRow]:
        """The rows, with the units counted that were emitted since the last draft."""
        memory: SuffixMemory = state.memory
        for row, new in zip(memory.rows, memory.emitted.read(state), strict=True):
            row.counts.extend(row.text, new)
            if self._earlier is not None:
                self._earlier.extend(row.text, new)
            row.text += new
        return memory.rows

    def guess(self, row: SuffixRow, text: Sequence[int]) -> Guess | None:
        """The continuation of a text of this row, of which the end is read."""
        sources: list[Statistics] = [s for s in (row.counts, self._earlier, self._corpus) if s is not None]
        return longest_of(sources, text[-self.options.max_match :])

    def continued(self, row: SuffixRow, k: int) -> list[tuple[int, float]]:
        """Up to `k` units, each with the log probability of the path up to it."""
        text, survival = row.text[-self.options.max_match :], 1.0
        drafted: list[tuple[int, float]] = []
        while len(drafted) < k:
            guess = self.guess(row, text)
            if guess is None or survival * guess.chance < self.options.threshold:
                break
            survival *= guess.chance
            drafted.append((guess.unit, math.log(survival)))
            text = [*text, guess.unit][-self.options.max_match :]
        return drafted


KEPT = 256
"""Texts whose counts are kept, the latest ones."""


class SuffixOfTexts:
    """A `HostDrafter`."""

    def __init__(self, suffix: Suffix) -> None:
        self._suffix, self._rows = suffix, list[SuffixRow]()

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        rows = [self._grown(text) for text in tokens]
        self._rows = [*rows, *self._rows][:KEPT]
        return [[unit for unit, _ in self._suffix.continued(row, k)] for row in rows]

    def _grown(self, text: list[int]) -> SuffixRow:
        """The row of a text: the longest one that it continues, taken from those that are kept; or a new one."""
        begun = [row for row in self._rows if row.text == text[: len(row.text)]]
        row = max(begun, key=lambda row: len(row.text), default=None)
        if row is None:
            row = self._suffix.row()
        else:
            self._rows = [other for other in self._rows if other is not row]
        new = text[len(row.text) :]
        row.counts.extend(row.text, new)
        row.text += new
        return row
