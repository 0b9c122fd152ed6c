"""`rest`: the most frequent continuations in a datastore of texts.

REST (He et al., arXiv 2311.08252). Every round looks up the longest suffix of the text, the last unit included, that
occurs in the datastore, from `max_match` units down to `min_match`; takes at most `matches` places where it does, and
`k` units behind each; and drafts the `nodes` most frequent prefixes of these continuations, a tree. Where the suffix
occurs more often than `matches`, places are taken evenly over their sorted order; the published code takes the first
ones, which favours continuations that sort early.
The published code draws the target's unit once for every path, where paths share a prefix once for each, and the best
path wins, which is biased (rules here draw once a node); it also keeps tokens in 16 bits.
Guarantee: drafts are point masses; exact under every rule that takes trees of them.
Knobs: a larger datastore of the same kind of text finds longer suffixes; `min_match` (lower drafts more often, and is
accepted less); `nodes` (more are accepted, and each costs in the target's pass).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field

from mmspec.core.drafters.emitted import KnownTexts
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.transfer import on_device
from mmspec.core.types import Draft, Step
from mmspec.kits.text.corpus import documents_of, read_corpus, refuse_other_ids
from mmspec.registry.options import option
from mmspec_text.specs import REST

BREAK = -1
"""The id between documents; no n-gram crosses it."""


@dataclass(frozen=True)
class Datastore:
    """Options that say what is looked up, and where."""

    corpus: Any = option(None, "a UTF-8 text file, a file of ids (.json, .safetensors), or a list of ids")
    tokenizer: Any = option(None, "for a corpus of text: the target's tokenizer, live or a model's name")
    max_match: Annotated[int, Field(ge=1, le=64)] = option(16, "longest suffix that is looked for")
    min_match: Annotated[int, Field(ge=1, le=64)] = option(2, "shortest suffix that is enough to draft")
    matches: Annotated[int, Field(ge=1)] = option(5000, "most places whose continuations are counted; more take longer")

    def __post_init__(self) -> None:
        if self.min_match > self.max_match:
            raise ValueError(f"min_match ({self.min_match}) must not exceed max_match ({self.max_match})")


@dataclass(frozen=True)
class RestOptions(Datastore):
    """Options of `rest`."""

    nodes: Annotated[int, Field(ge=1, le=512)] = option(16, "units that are verified at most")


class Node(NamedTuple):
    """A prefix of continuations. What continues one is never more frequent, so the most frequent ones are a tree."""

    unit: int  # its last unit
    parent: int  # index of the prefix without it; -1: there is none
    times: int  # how many continuations begin with it


def most_frequent(continuations: np.ndarray, nodes: int) -> list[Node]:
    """The most frequent prefixes, of equals the shorter first, then those of smaller ids; parents precede children.

    `continuations [place, length]` are units, negative ones behind the end.
    """
    found: list[Node] = []
    prefix = np.full(len(continuations), -1)  # of every continuation, the prefix so far
    alive = np.arange(len(continuations))
    for column in continuations.T:
        alive = alive[column[alive] >= 0]
        pairs, which, counts = np.unique(
            np.stack([prefix[alive], column[alive]], 1), axis=0, return_inverse=True, return_counts=True
        )
        prefix[alive] = len(found) + which.reshape(-1)
        found += [Node(int(unit), int(parent), int(count)) for (parent, unit), count in zip(pairs, counts, strict=True)]
    chosen = sorted(range(len(found)), key=lambda place: (-found[place].times, place))[:nodes]
    new = {place: index for index, place in enumerate(chosen)} | {-1: -1}
    return [Node(found[place].unit, new[found[place].parent], found[place].times) for place in chosen]


class Rest:
    """Drafts from a datastore."""

    needs, offers = REST.needs, REST.offers

    def __init__(self, options: RestOptions = RestOptions()) -> None:
        if options.corpus is None:
            raise ValueError("no texts to look up: corpus=<a text file>, with tokenizer=<the target's>; or ids")
        corpus = read_corpus(options.corpus, options.tokenizer)
        self.options, self._corpus = options, SuffixArray(corpus, options.min_match, options.max_match)

    def bind(self, target: Target) -> None:
        assert target.vocab is not None
        refuse_other_ids(self._corpus.largest, target.vocab)

    def width(self, k: int) -> int:
        return self.options.nodes if k else 0

    def start(self, state: State, inputs: Any) -> KnownTexts:
        return KnownTexts(state)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        memory: KnownTexts = state.memory
        rows = zip(memory.read(state), state.host.done, strict=True)
        return drafted([[] if done else self.retrieved(text, k) for text, done in rows], state.root, k)

    def observe(self, state: State, step: Step) -> None:
        state.memory.observe(state, step)

    def retrieved(self, text: list[int], k: int) -> list[Node]:
        """The tree behind a text, at most `k` levels of it."""
        found, _ = self._corpus.continuations(text, self.options.matches, k)
        return most_frequent(found, self.options.nodes)


def drafted(trees: list[list[Node]], root: torch.Tensor, deepest: int) -> Draft:
    """A draft of one tree per row, not rooted; rows with a smaller tree are filled with invalid nodes."""
    width = max(map(len, trees))
    if not width:
        return Draft.empty(root)
    nothing = Node(0, -1, 0)
    filled = [tree + [nothing] * (width - len(tree)) for tree in trees]
    units, parents, counts = (
        on_device([[node[part] for node in tree] for tree in filled], root.device, torch.int64) for part in range(3)
    )
    total = (counts * (parents < 0)).sum(1, keepdim=True)
    return Draft.tree(units, parents, valid=counts > 0, score=(counts / total).log(), deepest=deepest)


class SuffixArray:
    """All positions of a corpus (ids, or a list of documents of ids), sorted by the units from there on, so that an
    n-gram is a range. Ids are int32. Prefix doubling sorts by 1, 2, 4, … units up to the longest n-gram.
    """

    def __init__(self, ids: Sequence[int] | Sequence[Sequence[int]], shortest: int, longest: int) -> None:
        self.shortest = shortest
        self.longest = longest
        pieces = [piece for document in documents_of(ids) for piece in (document, np.array([BREAK], np.int32))]
        flat = np.concatenate(pieces)
        self.largest = int(flat.max())
        self._ids = np.concatenate([flat, np.full(longest + 1, BREAK, np.int32)])
        self._order = _sorted_places(flat, longest)

    def continuations(self, text: Sequence[int], most: int, length: int) -> tuple[np.ndarray, int]:
        """The continuation of the longest suffix of a text that the corpus has, and `length` units behind it.

        That is `[place, length]` int32, `BREAK` behind the end of a document, and the suffix's length, 0 if there is
        none. Of more than `most` places, evenly spread ones are taken.
        """
        for matched in range(min(self.longest, len(text)), self.shortest - 1, -1):
            first, last = self._range(text[-matched:])
            places = self._order[first:last].astype(np.int64) + matched
            places = places[self._ids[places] != BREAK]
            if len(places):
                if len(places) > most:
                    places = places[np.arange(most) * len(places) // most]
                found = self._ids[(places[:, None] + np.arange(length)).clip(max=len(self._ids) - 1)]
                return np.where(np.cumsum(found == BREAK, 1) > 0, BREAK, found), matched
        return np.zeros((0, length), np.int32), 0

    def _range(self, gram: Sequence[int]) -> tuple[int, int]:
        """Where in the order the positions are from which an n-gram begins: from one, up to another."""
        first, last = 0, len(self._order)
        for offset, unit in enumerate(gram):
            if first == last:
                break
            shown = self._ids[offset:]
            first = bisect_left(self._order, unit, first, last, key=shown.__getitem__)
            last = bisect_right(self._order, unit, first, last, key=shown.__getitem__)
        return first, last


def _sorted_places(ids: np.ndarray, longest: int) -> np.ndarray:
    """All positions in `ids`, sorted by the first `longest` units from there on: `[len(ids)]` int32."""
    rank = np.unique(ids, return_inverse=True)[1].astype(np.int64) + 1  # 0 stands for the end
    order, known = np.argsort(rank, kind="stable"), 1
    while known < longest:
        later = np.zeros_like(rank)
        later[:-known] = rank[known:]
        key = rank * (len(ids) + 2) + later
        order, known = np.argsort(key, kind="stable"), 2 * known
        ranked = key[order]
        rank[order] = np.concatenate([[0], (ranked[1:] != ranked[:-1]).cumsum()]) + 1
    return order.astype(np.int32 if len(ids) < 2**31 else np.int64)
