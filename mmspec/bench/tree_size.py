"""How large a static tree pays on this machine."""

from collections.abc import Callable, Sequence

import torch

from mmspec.bench.timing import pass_seconds
from mmspec.core.capabilities import RunsModel
from mmspec.core.drafters.shapes import Static
from mmspec.core.drafters.static_tree import expected_units
from mmspec.core.protocols import Target

SIZES = (2, 4, 8, 12, 16, 24, 32)
"""Sizes of passes that are measured: nodes, root included."""
REPEATS = 3
"""Repeats of the measurement."""
PROMPT = 8
"""Tokens of its prompt."""


def paying_nodes(target: Target, model: Target, tree: Callable[[int], Static], rates: Sequence[float]) -> int:
    """The drafted nodes of the tree with the most expected units per second (Sequoia, arXiv 2402.12374).

    Args:
        target: Its passes of several sizes are timed.
        model: The draft model; its pass of one node is timed, and stands for a level.
        tree: The tree of so many drafted nodes.
        rates: Chance of a child of each rank.
    """
    prompt = torch.zeros(1, PROMPT, dtype=torch.int64, device=_device(target))
    whole = pass_seconds(target, prompt, SIZES, REPEATS)
    level = pass_seconds(model, prompt, (1,), REPEATS)[1]

    def units_per_second(size: int) -> float:
        drafted = tree(size - 1)
        units = expected_units(drafted.tree, drafted.ranks, rates)
        return units / (whole[size] + level * len(drafted.by_level))

    return max(SIZES, key=units_per_second) - 1


def _device(target: Target) -> torch.device:
    """The device of a target's weights; the CPU for a target that runs no model."""
    weight = next(target.model.parameters(), None) if isinstance(target, RunsModel) else None
    return torch.device("cpu") if weight is None else weight.device
