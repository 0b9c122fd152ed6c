"""`lookahead`: n-grams of the target's own guesses, made in the same pass that verifies them (arXiv 2402.02057).

Every pass feeds a window of guesses, whose answers become n-grams, and the n-grams that begin with the root, which are
verified. As in the published code, guesses are the likeliest units, the window moves on by one place in every round,
however many units were accepted, and the prompt's n-grams are in the pool.
Differences: the window begins with the last units of the prompt (published: with random ones of it); cells that a right
guess agrees with count as drafted; each row of a batch has its own window. The published greedy verification never
counts the last unit of a guess; here the rule decides.
The window has `n - 1` rows. The cell (r, c) guesses the unit r + c places behind the root, and the cell (0, 0) is the
root. A cell's context is row 0 up to its column, then its column down to it. The target's answers at the last row are
the next row: what each column says then is an n-gram. So the window is a tree: (0, c) hangs on (0, c - 1), and (r, c)
on (r - 1, c). N-grams that begin with the root are branches of the same tree, and equal siblings are one node: their
contexts are equal.
Guarantee: drafts are point masses; exact under every rule that takes trees of them.
Knobs: `k` is the depth of the window, which then has W = k - n + 3 columns; `n` (longer n-grams accept more at once,
and are right less often); `guesses` (more n-grams are tried). Each adds nodes to every pass, which has about
(n - 1) (W + guesses).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.drafters.emitted import prompts_of
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.registry.options import option
from mmspec_text.drafters.retrieval.rest import Node, drafted
from mmspec_text.specs import LOOKAHEAD

ROOT = -1


class Tree:
    """A tree without equal siblings; the nodes in the order in which they came."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._found: dict[tuple[int, int], int] = {}

    def child(self, parent: int, unit: int) -> int:
        """The child of a node, or of `ROOT`, with this unit; a new one if there is none."""
        node = self._found.setdefault((parent, unit), len(self.nodes))
        if node == len(self.nodes):
            self.nodes.append(Node(unit, parent, 1))
        return node


class Row:
    """The window and the pool of one row.

    The window has `columns` (W), the root's included, and begins with the prompt's last units, None where they cannot
    be guessed. Of n-grams (N, at least 2) that begin with the same unit the latest `guesses` (G) are kept.
    """

    def __init__(self, prompt: Sequence[int | None], columns: int, n: int, guesses: int, from_prompt: bool) -> None:
        self.n, self.guesses = n, guesses
        self.pool: dict[int, list[tuple[int, ...]]] = {}
        wide = columns + n - 2  # the first n - 2 rounds add a row each, and take a column away
        first = [prompt[(at - wide) % len(prompt)] if prompt else None for at in range(wide)]
        self.window = [first]
        self._places: list[list[int | None]] = []  # of the cells in the tree of the last draft; None: not drafted
        for at in range(len(prompt) - n + 1) if from_prompt else ():
            self._keep(tuple(prompt[at : at + n]))

    def tree(self, root: int, deepest: int) -> list[Node]:
        """The window and the n-grams behind the root, as far as level `deepest`."""
        tree = Tree()
        self.window[0][0] = root
        above: list[int | None] = [ROOT]
        for column, unit in enumerate(self.window[0][1:], 1):
            above.append(_hung(tree, above[-1], unit, column <= deepest))
        self._places = [above]
        for number, units in enumerate(self.window[1:], 1):
            cells = enumerate(zip(above, units, strict=True))
            above = [_hung(tree, place, unit, number + column <= deepest) for column, (place, unit) in cells]
            self._places.append(above)
        for gram in reversed(self.pool.get(root, [])):
            place = ROOT
            for unit in gram[1 : deepest + 1]:
                place = tree.child(place, unit)
        return tree.nodes

    def learn(self, answers: Sequence[int]) -> None:
        """Take what the target says behind the root, and behind each node of the tree: `[1 + node]`; -1: nothing."""
        said = [None if place is None else answers[1 + place] for place in self._places[-1]]
        new = [None if unit is None or unit < 0 else unit for unit in said]
        if len(self.window) < self.n - 1:
            self.window = [row[1:] for row in (*self.window, new)]
            return
        for column in zip(*self.window, new, strict=True):
            self._keep(column)
        self.window = [*self.window[1:], new]

    def _keep(self, gram: Iterable[int | None]) -> None:
        known = tuple(unit for unit in gram if unit is not None)
        if len(known) == self.n:
            others = [other for other in self.pool.get(known[0], []) if other != known]
            self.pool[known[0]] = [*others, known][-self.guesses :]


def _hung(tree: Tree, parent: int | None, unit: int | None, wanted: bool) -> int | None:
    """A cell below another; None if either is not there."""
    return None if parent is None or unit is None or not wanted else tree.child(parent, unit)


@dataclass(frozen=True)
class LookaheadOptions:
    """Options of `lookahead`."""

    n: Annotated[int, Field(ge=2, le=16)] = option(4, "units of an n-gram (N)")
    guesses: Annotated[int, Field(ge=1, le=64)] = option(4, "n-grams that are verified in a round (G)")
    from_prompt: bool = option(True, "whether the prompt's n-grams are guesses, too")


@dataclass
class LookaheadMemory:
    """The memory of one call."""

    rows: list[Row]  # the window and the pool of each row
    drafted: Tensor | None = None  # the units of the last draft, `[batch, node]`; None: there was none
    # What the target said behind the root and at these units, `[batch, 1 + node]`; -1: nothing; None: they were not
    # verified
    answers: Tensor | None = None


class Lookahead:
    """Drafts n-grams, and makes new ones."""

    needs, offers = LOOKAHEAD.needs, LOOKAHEAD.offers

    def __init__(self, options: LookaheadOptions = LookaheadOptions()) -> None:
        self.options = options

    def bind(self, target: Target) -> None:
        assert target.vocab is not None
        self._vocab = target.vocab

    def width(self, k: int) -> int:
        n, columns = self._sizes(k)
        window = max(rows * (columns + n - 1 - rows) - 1 for rows in range(1, n))
        return (window + (n - 1) * self.options.guesses) if k else 0

    def start(self, state: State, inputs: Any) -> LookaheadMemory:
        n, columns = self._sizes(state.budget.k)
        # None for ids that are never scored
        texts = ([unit if unit < self._vocab else None for unit in text] for text in prompts_of(state))
        how = columns, n, self.options.guesses, self.options.from_prompt
        return LookaheadMemory([Row(text, *how) for text in texts])

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        memory: LookaheadMemory = state.memory
        answers = state.root[:, None][:, :0] if memory.answers is None else memory.answers
        read = torch.cat([state.root[:, None], answers], 1).tolist()  # one wait
        trees = list[list[Node]]()
        for row, (root, *said), done in zip(memory.rows, read, state.host.done, strict=True):
            if said and not done:
                row.learn(said)
            trees.append([] if done else row.tree(root, k))
        draft = replace(drafted(trees, state.root, k), score=None)  # nothing says how likely a guess is
        memory.drafted, memory.answers = draft.units, None
        return draft

    def observe(self, state: State, step: Step) -> None:
        memory: LookaheadMemory = state.memory
        draft, logits = step.draft, step.scores.logits
        drafted, memory.drafted = memory.drafted, None
        nodes = 0 if drafted is None else 1 + drafted.shape[1]  # behind them, a round may have padding
        if drafted is None or logits is None or draft.nodes < nodes:
            return  # others drafted in this round
        ours = torch.nn.functional.pad(draft.units[:, 1:nodes] == drafted, (1, 0), value=True)
        memory.answers = torch.where(draft.valid[:, :nodes] & ours, logits[:, :nodes].argmax(-1), -1)

    def _sizes(self, k: int) -> tuple[int, int]:
        """Units of an n-gram and columns of the window, for a tree of `k` levels."""
        n = min(self.options.n, k + 1)
        return max(n, 2), max(k - n + 3, 1)
