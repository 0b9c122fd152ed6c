"""The cost of a round over a tree of N nodes, compared with a chain of N nodes and with a single node.

All sizes take turns. Rounds commit with no node kept, which costs the same, so that all rounds begin at the same state.
Memory is the most that a round allocates, beside the memory of one state per node, which a method without tree
operations would need.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.timing import timed
from mmspec.core.drafters.static_tree import likeliest_tree
from mmspec.core.types import Draft
from mmspec.hosts.target import TransformersTarget
from mmspec.report.result import speedup_of
from mmspec_ssm.drafters.stree import StreeOptions
from tools.bench.memory import peak_growth

SIZES = (1, 2, 4, 8, 16, 32, 64)
REPEATS = 25
WARM_UP = 3


class Round:
    """A round over a tree, which can be repeated from the same state.

    Args:
        target: The target.
        cache: The cache of a call.
        root: `[1]`: the root's unit.
        parents: The parents of the drafted nodes.
    """

    def __init__(self, target: TransformersTarget, cache: Any, root: Tensor, parents: Sequence[int]) -> None:
        self._target, self._cache = target, cache
        units = root[:, None].expand(-1, len(parents)).contiguous()
        self._draft = Draft.tree(units, parents).rooted(root, torch.full_like(root, len(parents)))
        self._path = root.new_zeros(1, self._draft.index.deepest)
        self._none = root.new_zeros(1)

    def verify(self) -> None:
        """Run the pass."""
        self._target.verify(self._cache, self._draft)

    def commit(self) -> None:
        """Commit nothing of that pass."""
        self._target.commit(self._cache, self._path, self._none)

    def whole(self) -> None:
        """Run the pass and its commit."""
        self.verify()
        self.commit()


def rounds(target: TransformersTarget, prompt: Tensor) -> dict[str, dict[str, float]]:
    """Measurements of rounds by name, then by N.

    Args:
        target: A target with recurrent layers.
        prompt: `[1, length]`: the prompt of all rounds.
    """
    started, device, options = target.start(prompt, 1, max(SIZES)), str(prompt.device), StreeOptions()

    def shaped(parents: Callable[[int], Sequence[int]]) -> dict[int, Round]:
        return {n: Round(target, started.cache, prompt[:, -1], parents(n - 1)) for n in SIZES}

    trees = shaped(lambda drafted: likeliest_tree(options.rates, options.depth, drafted)[0])
    chains = shaped(lambda drafted: range(-1, drafted - 1))
    tree, commit, chain = _seconds(trees, chains, device)
    state = _bytes(started.cache.slots)
    numbers: dict[str, Callable[[int], float]] = {
        "tree, ms": lambda n: 1e3 * statistics.median(tree[n]),
        "tree / one node": lambda n: speedup_of(tree[n], tree[1]),
        "tree / chain": lambda n: speedup_of(tree[n], chain[n]),
        "commit / tree": lambda n: speedup_of(commit[n], tree[n]),
        "memory of a round, MB": lambda n: peak_growth(trees[n].whole, device) / 1e6,
        "N states, MB": lambda n: n * state / 1e6,
    }
    return {name: {str(n): round(number(n), 4) for n in SIZES} for name, number in numbers.items()}


def _seconds(trees: dict[int, Round], chains: dict[int, Round], device: str) -> list[dict[int, list[float]]]:
    """Seconds of passes over trees, of their commits, and of passes over chains, for every N and repeat."""
    seconds: list[dict[int, list[float]]] = [{n: [] for n in trees} for _ in range(3)]
    for repeat in range(WARM_UP + REPEATS):
        for n in trees:
            work = (trees[n].verify, trees[n].commit, chains[n].verify)
            for kept, took in zip(seconds, [timed(each, device) for each in work], strict=True):
                kept[n] += [took] if repeat >= WARM_UP else []
    return seconds


def _bytes(cache: Any) -> int:
    """Bytes of one state of every recurrent layer."""
    states = [operation.state for layer in cache.recurrent.values() for operation in layer.operations.values()]
    return sum(state.numel() * state.element_size() for state in states)
