"""STree: a static tree by a small model, as large as the hardware verifies for next to nothing.

Wu et al., arXiv 2505.14969, for state-space models and hybrids. The tree is the best one for its size where acceptance
depends on a child's rank only (Sequoia, arXiv 2402.12374, § 4.1); its size is the one whose expected units a second are
most, from what passes of the target of several sizes take on this machine and what the small model takes for a level.
Guarantee: exact under `match` and `recursive-rejection`, whatever the size: what is measured can cost time, no more.
Knobs: `nodes` (a number instead of measuring), `rates` (how good the small model is, by rank), `shape="chain"`.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from mmspec.bench.limits import pass_seconds
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.static_tree import likeliest_tree
from mmspec.core.protocols import Target
from mmspec.hosts.draft_models import drafting_target
from mmspec_ssm.drafters.static import StaticShape

SIZES = (2, 4, 8, 12, 16, 24, 32)
"""Nodes of a pass, root included, that are tried."""
REPEATS = 3
PROMPT = 8


@dataclass(frozen=True)
class StreeOptions:
    """Options of `stree`."""

    model: Any = field(
        default=None, metadata={"help": "the smaller model: a shipped name, a folder, a hub name or a live model"}
    )
    shape: Literal["tree", "chain"] = field(default="tree", metadata={"help": "a static tree, or a chain"})
    nodes: Annotated[int, Field(ge=1, le=255)] | None = field(
        default=None, metadata={"help": "tokens per draft; by default as many as pay on this machine, measured once"}
    )
    rates: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = field(
        default=(0.6, 0.15, 0.06, 0.03), metadata={"help": "chance that the child of a rank is right, falling"}
    )
    depth: Annotated[int, Field(ge=1, le=32)] = field(
        default=8, metadata={"help": "levels at most; k cuts the tree further down"}
    )

    def __post_init__(self) -> None:
        if not self.rates or list(self.rates) != sorted(self.rates, reverse=True) or sum(self.rates) > 1:
            raise ValueError(f"rates are chances of siblings: falling, and at most 1 together; got {self.rates}")


class Stree(DraftModel):
    """Drafts a static tree with a smaller model.

    Args:
        options: Which model, which tree.

    Raises:
        ValueError: No model was named, or it cannot be loaded.
    """

    example = "mmspec_ssm.example:stree"

    def __init__(self, options: StreeOptions = StreeOptions()) -> None:
        if options.model is None:
            raise ValueError("stree needs a smaller model: drafter=<model>, or the option model=mmspec/text-1m")
        self.options = options
        super().__init__(drafting_target(options.model), self._tree(options.nodes or max(SIZES) - 1))

    def bind(self, target: Target) -> None:
        super().bind(target)
        if self.options.nodes is None:
            self.shape = self._tree(self._measured(target))

    def _tree(self, nodes: int) -> StaticShape:
        rates = self.options.rates[:1] if self.options.shape == "chain" else self.options.rates
        return StaticShape(*likeliest_tree(rates, self.options.depth, nodes))

    def _measured(self, target: Target) -> int:
        """Drafted nodes of the tree that is expected to bring most units a second."""
        prompt = torch.zeros(1, PROMPT, dtype=torch.int64, device=_device(target))
        whole = pass_seconds(target, prompt, SIZES, REPEATS)
        level = pass_seconds(self.model, prompt, (1,), REPEATS)[1]

        def pays(size: int) -> float:
            tree = self._tree(size - 1)
            return expected(tree, self.options.rates) / (whole[size] + level * tree.levels(self.options.depth))

        return max(SIZES, key=pays) - 1


def expected(tree: StaticShape, rates: tuple[float, ...]) -> float:
    """Units that a round emits, if a child of rank r is right with `rates[r]`."""
    reached: list[float] = []
    for parent, rank in zip(tree.tree, tree.ranks, strict=True):
        reached.append(rates[rank] * (reached[parent] if parent >= 0 else 1.0))
    return 1 + sum(reached)


def _device(target: Target) -> torch.device:
    device: torch.device = getattr(getattr(target, "model", None), "device", torch.device("cpu"))
    return device
