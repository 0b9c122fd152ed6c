"""Suffix decoding: a draft is what most often followed the end of the text, where that occurred before.

SuffixDecoding (Oliaro et al., arXiv 2411.04975; snowflakedb/ArcticInference). Two memories are asked: the row's own
prompt and output, with those of the rows of the same prompt (`siblings`); and the outputs of all earlier calls
(`remember`), least recently used ones out. A `corpus` may be a third.
Every length of a suffix is tried, from one unit to `max_match`. Behind its places the likeliest continuation is taken,
as a chain (`suffix`) or as a tree by a heap (`suffix-tree`), of at most `factor` units for each unit of the suffix, and
as long as the chance of its path is above `threshold`. The draft with the largest sum of chances, which is the number
of units that it is expected to bring, is verified; of equals that of the longer suffix, and the row's own first.
The chance of a unit is its share of the places; the end of the text, behind which nothing stands yet, counts as one
more, as in the released code. That counts all places in a tree; here the latest `PLACES` of a suffix are counted.
Guarantee: drafts are point masses; exact under every rule that takes chains of them, or trees.
Knobs: a higher `threshold` drafts less and is accepted more often; a larger `min_match` drafts less often; a higher
`factor` drafts longer behind short suffixes and is accepted more, and each node costs. `remember=0` and
`siblings=False` make a row's drafts depend on its own text alone, and with them what a seed gives under a rule that is
lossless and not invariant.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field

from mmspec.core.drafters.emitted import EmittedUnits, prompts_of
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.transfer import on_device
from mmspec.core.types import Draft, Step
from mmspec.kits.text.corpus import documents_of, read_corpus, refuse_other_ids
from mmspec.registry.options import option
from mmspec_text.drafters.suffix_texts import BREAK, FRESH, LONGEST, Found, Remembered, Written
from mmspec_text.specs import SUFFIX, SUFFIX_TREE

PLACES = 64
"""Places of a suffix that are counted, the latest ones."""
UNSEEN = 1.0
"""Places that the end of the text counts as."""


@dataclass(frozen=True)
class SuffixOptions:
    """Options of `suffix` and `suffix-tree`."""

    max_match: Annotated[int, Field(ge=1, le=LONGEST)] = option(LONGEST, "longest suffix that is looked for")
    min_match: Annotated[int, Field(ge=1, le=LONGEST)] = option(1, "shortest suffix that is enough to draft")
    factor: Annotated[float, Field(gt=0, le=LONGEST)] = option(1.0, "most units for each unit of the suffix")
    threshold: Annotated[float, Field(ge=0, lt=1)] = option(
        0.1, "stop where a path's estimated probability falls below; higher drafts less"
    )
    remember: Annotated[int, Field(ge=0, le=10**8)] = option(
        2_000_000, "units of earlier calls' output to draft from; 0: every call by itself"
    )
    siblings: bool = option(True, "whether rows of one prompt (num_return_sequences) draft from each other's text")
    corpus: Any = option(None, "a UTF-8 text file, a file of ids (.json, .safetensors), or a list of ids")
    tokenizer: Any = option(None, "for a corpus of text: the target's tokenizer, live or a model's name")

    def __post_init__(self) -> None:
        if self.min_match > self.max_match:
            raise ValueError(f"min_match ({self.min_match}) must not exceed max_match ({self.max_match})")


class Node(NamedTuple):
    """A drafted unit."""

    unit: int
    parent: int  # the index of the node before it; -1: none
    chance: float  # of its whole path


NOTHING = Node(0, -1, 0.0)


@dataclass
class SuffixRow:
    """One row of a call, or a text of an engine's."""

    text: Written  # prompt and output without padding
    siblings: list[Written]  # the texts of all rows of its prompt, its own included
    fresh: list[int] = field(default_factory=list)  # its units that are not remembered yet
    block: int | None = None  # where the units before these are remembered


@dataclass
class SuffixMemory:
    """The memory of one call."""

    rows: list[SuffixRow]
    emitted: EmittedUnits  # what the call emits


class Suffix:
    """Drafts from what was written before."""

    needs, offers = SUFFIX.needs, SUFFIX.offers
    children: int | None = 1  # of a node, at most

    def __init__(self, options: SuffixOptions = SuffixOptions()) -> None:
        self.options = options
        self._earlier = Remembered(options.remember) if options.remember else None
        self._corpus, self._largest = None, -1
        if options.corpus is not None:
            documents = documents_of(read_corpus(options.corpus, options.tokenizer))
            self._largest = max(int(document.max()) for document in documents if len(document))
            self._corpus = Remembered(sum(FRESH + len(document) for document in documents))
            for document in documents:
                self._corpus.add(document[:0], document)
        self._before: SuffixMemory | None = None  # of the call before, whose last units nobody has read

    def __getstate__(self) -> dict[str, Any]:
        """All but the texts of earlier calls, which are of this process: a copy, or a file, begins without them."""
        return {**vars(self), "_earlier": None, "_before": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._earlier = Remembered(self.options.remember) if self.options.remember else None

    def bind(self, target: Target) -> None:
        assert target.vocab is not None
        refuse_other_ids(self._largest, target.vocab)

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> SuffixMemory:
        if self._before is not None:
            for row, new in zip(self._before.rows, self._before.emitted.rest(), strict=True):
                self.extend(row, new, ended=True)
        rows, of_prompt = list[SuffixRow](), dict[tuple[int, ...], list[Written]]()
        for prompt in prompts_of(state):
            row = SuffixRow(Written(prompt), [])
            if self.options.siblings and prompt:  # a prompt of embeddings has no ids that could be compared
                row.siblings = of_prompt.setdefault(tuple(prompt), row.siblings)
            row.siblings.append(row.text)
            rows.append(row)
        self._before = SuffixMemory(rows, EmittedUnits(state))
        return self._before

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        rows = zip(self.caught_up(state), state.host.done, strict=True)
        drafts = [[] if done else self.continued(row, row.text.units, k) for row, done in rows]
        width = max(map(len, drafts))
        filled = [draft + [NOTHING] * (width - len(draft)) for draft in drafts]
        # One transfer for all: float32 has all integers up to 2²⁴, and so many ids no vocabulary has.
        both = on_device([[node[:3] for node in draft] for draft in filled], state.root.device, torch.float32)
        units, parents, chances = both.reshape(state.rows, width, 3).unbind(2)
        units, valid, score = units.long(), chances > 0, chances.log()
        if self.children == 1:
            return Draft.chain(units, valid=valid, score=score)
        return Draft.tree(units, parents.long(), valid=valid, score=score, deepest=k)

    def observe(self, state: State, step: Step) -> None:
        state.memory.emitted.observe(state, step)

    def of_texts(self) -> "SuffixOfTexts":
        return SuffixOfTexts(self)

    def caught_up(self, state: State) -> list[SuffixRow]:
        """The rows, with the units that were emitted since the last draft."""
        memory: SuffixMemory = state.memory
        for row, new, done in zip(memory.rows, memory.emitted.read(state), state.host.done, strict=True):
            self.extend(row, new, ended=done)
        return memory.rows

    def extend(self, row: SuffixRow, new: Sequence[int], ended: bool = False) -> None:
        """Write on in a row's text. What it emits is remembered in whole blocks, and at its end."""
        row.text.extend(new)
        row.fresh += new
        if self._earlier is not None and row.fresh and (ended or len(row.fresh) >= FRESH):
            before = row.text.units[: row.text.length - len(row.fresh)]
            row.block = self._earlier.add(before, row.fresh, row.block)
            row.fresh = []

    def continued(self, row: SuffixRow, text: np.ndarray, k: int) -> list[Node]:
        """The best draft of at most `k` nodes behind a text of this row, of which the end is read."""
        k = min(k, LONGEST)
        tail, best, source = text[-self.options.max_match :], list[Node](), None
        if not len(tail) or not k:
            return best
        here = [row.text, *(text for text in row.siblings if text is not row.text)]
        own = Found.joined([text.found(tail, PLACES, k) for text in here])
        found: list[tuple[Found, Remembered | None]] = [(own, None)]
        found += [(memory.found(tail, PLACES, k), memory) for memory in (self._earlier, self._corpus) if memory]
        for places, memory in found:
            draft = self._best(places, k, expected(best))
            if draft:
                best, source = draft, None if memory is None else (places, memory)
        if source is not None:
            places, memory = source
            memory.use(places.places[places.matched == places.matched.max()])
        return best

    def _best(self, found: Found, k: int, expected_before: float) -> list[Node]:
        """The draft of the largest expectation over all lengths of a suffix; nothing if others expect as much."""
        options, best, most = self.options, list[Node](), expected_before
        behind, matched = found.behind.tolist(), found.matched.tolist()
        for length in sorted(set(matched), reverse=True):
            units = min(k, int(length * options.factor + 1e-6))
            if length < options.min_match or units <= most:  # no draft can be expected to bring more than all its units
                break
            alive = [units for units, n in zip(behind, matched, strict=True) if n >= length]
            draft = grown(alive, units, options.threshold, self.children)
            if expected(draft) > most:
                best, most = draft, expected(draft)
        return best


class SuffixTree(Suffix):
    """The same with trees."""

    needs, offers = SUFFIX_TREE.needs, SUFFIX_TREE.offers
    children = None


def expected(draft: list[Node]) -> float:
    """The units that a draft is expected to bring."""
    return sum(node.chance for node in draft)


def grown(behind: list[list[int]], most: int, threshold: float, children: int | None) -> list[Node]:
    """The `most` likeliest nodes of the tree of continuations `behind`, the latest first, each `BREAK` behind its end.

    No path's chance is below `threshold`; of a node's children the likeliest `children` are looked at, or all.
    """
    nodes, heap, number = list[Node](), list[tuple[float, int, Node, list[list[int]], int]](), 0
    parent, chance, depth, total = -1, 1.0, 0, len(behind) + UNSEEN
    while len(nodes) < most:
        following = dict[int, list[list[int]]]()
        for units in behind:
            if depth < len(units) and units[depth] != BREAK:
                following.setdefault(units[depth], []).append(units)
        likeliest = sorted(following.items(), key=lambda item: -len(item[1]))[:children]
        for unit, those in likeliest:
            node, number = Node(unit, parent, chance * len(those) / total), number + 1
            if node.chance >= threshold:
                heapq.heappush(heap, (-node.chance, number, node, those, depth + 1))
        if not heap:
            break
        _, _, node, behind, depth = heapq.heappop(heap)
        parent, chance, total = len(nodes), node.chance, len(behind)
        nodes.append(node)
    return nodes


KEPT = 256
"""Texts that are kept, the latest ones."""


class SuffixOfTexts:
    """A `HostDrafter`."""

    def __init__(self, suffix: Suffix) -> None:
        self._suffix, self._rows = suffix, list[SuffixRow]()

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        rows = [self._grown(text) for text in tokens]
        self._rows = [*rows, *self._rows][:KEPT]
        return [[node.unit for node in self._suffix.continued(row, row.text.units, k)] for row in rows]

    def _grown(self, text: list[int]) -> SuffixRow:
        """The row of a text: the longest one that it continues, taken from those that are kept; or a new one."""
        begun = [row for row in self._rows if np.array_equal(row.text.units, text[: row.text.length])]
        row = max(begun, key=lambda row: row.text.length, default=None)
        if row is None:
            written = Written(text)
            return SuffixRow(written, [written])
        self._rows = [other for other in self._rows if other is not row]
        self._suffix.extend(row, text[row.text.length :])
        return row
