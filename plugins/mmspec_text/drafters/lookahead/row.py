"""One row of lookahead decoding (Fu et al., arXiv 2402.02057): a window of guesses, and the n-grams that came of it.

The window has `n - 1` rows. The cell (r, c) guesses the unit r + c places behind the root, and the cell (0, 0) is the
root. A cell's context is row 0 up to its column, then its column down to it. The target's answers at the last row are
the next row: what each column says then is an n-gram.
So the window is a tree: (0, c) hangs on (0, c - 1), and (r, c) on (r - 1, c). N-grams that begin with the root are
branches of the same tree, and equal siblings are one node: their contexts are equal.
"""

from collections.abc import Iterable, Sequence

from mmspec_text.drafters.retrieval.trie import Node

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

    Args:
        prompt: The row's prompt, with None for units that cannot be guessed; the window begins with its last ones.
        columns: Columns of the window, the root's included (W).
        n: Units of an n-gram (N), at least 2.
        guesses: Most n-grams that begin with the same unit (G); the latest ones are kept.
        from_prompt: Whether the prompt's own n-grams are in the pool from the beginning.
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
