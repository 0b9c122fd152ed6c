"""STree: a static tree by a small model, of the size that pays on the hardware.

Wu et al., arXiv 2505.14969, for state-space models and hybrids. The tree is the best one for its size if acceptance
depends on a child's rank only (Sequoia, arXiv 2402.12374, § 4.1). Its size maximises expected units per second, from
the measured time of target passes of several sizes and of a level of the small model.
Guarantee: exact under `match` and `recursive-rejection` for every size; the measurement affects speed only.
Knobs: `nodes` (a number instead of measuring), `rates` (how good the small model is, by rank), `form="chain"`.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from mmspec.bench.limits import pass_seconds
from mmspec.core.capabilities import RunsModel
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.static_tree import expected_units, likeliest_tree
from mmspec.core.protocols import Target
from mmspec.hosts.draft_models import drafting_target
from mmspec_ssm.drafters.static import StaticShape

SIZES = (2, 4, 8, 12, 16, 24, 32)
"""Sizes of passes that are measured: nodes, root included."""
REPEATS = 3
"""Repeats of the measurement."""
PROMPT = 8
"""Tokens of its prompt."""


@dataclass(frozen=True)
class StreeOptions:
    """Options of `stree`."""

    model: Any = field(
        default=None, metadata={"help": "the smaller model: a shipped name, a folder, a hub name or a live model"}
    )
    form: Literal["tree", "chain"] = field(default="tree", metadata={"help": "a static tree, or a chain"})
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
        options: The small model and the tree.

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
        rates = self.options.rates[:1] if self.options.form == "chain" else self.options.rates
        return StaticShape(*likeliest_tree(rates, self.options.depth, nodes))

    def _measured(self, target: Target) -> int:
        """The drafted nodes of the tree with the most expected units per second."""
        prompt = torch.zeros(1, PROMPT, dtype=torch.int64, device=_device(target))
        whole = pass_seconds(target, prompt, SIZES, REPEATS)
        level = pass_seconds(self.model, prompt, (1,), REPEATS)[1]

        def units_per_second(size: int) -> float:
            tree = self._tree(size - 1)
            units = expected_units(tree.tree, tree.ranks, self.options.rates)
            return units / (whole[size] + level * tree.levels(self.options.depth))

        return max(SIZES, key=units_per_second) - 1


def _device(target: Target) -> torch.device:
    """The device of a target's weights; the CPU for a target that runs no model."""
    weight = next(target.model.parameters(), None) if isinstance(target, RunsModel) else None
    return torch.device("cpu") if weight is None else weight.device
