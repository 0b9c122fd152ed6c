"""STree: a static tree by a small model, of the size that pays on the hardware.

Wu et al., arXiv 2505.14969, for state-space models and hybrids. The tree is the best one for its size if acceptance
depends on a child's rank only (Sequoia, arXiv 2402.12374, § 4.1). Its size maximises expected units per second, from
the measured time of target passes of several sizes and of a level of the small model.
Guarantee: exact under `match` and `recursive-rejection` for every size; the measurement affects speed only.
Knobs: `nodes` (a number instead of measuring), `rates` (how good the small model is, by rank), `form="chain"`.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from mmspec.bench.timing import SIZES, paying_nodes
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.shapes import Static
from mmspec.core.drafters.static_tree import likeliest_tree
from mmspec.core.protocols import Target
from mmspec.hosts.draft_models import drafting_target, refuse_other_tokenizer
from mmspec.registry.options import option


@dataclass(frozen=True)
class StreeOptions:
    model: Any = option(None, "the smaller model: a shipped name, a folder, a hub name or a live model")
    form: Literal["tree", "chain"] = option("tree", "a static tree, or a chain")
    nodes: Annotated[int, Field(ge=1, le=255)] | None = option(
        None, "tokens per draft; by default as many as pay on this machine, measured once"
    )
    rates: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = option(
        (0.6, 0.15, 0.06, 0.03), "chance that the child of a rank is right, falling"
    )
    depth: Annotated[int, Field(ge=1, le=32)] = option(8, "levels at most; k cuts the tree further down")

    def __post_init__(self) -> None:
        if not self.rates or list(self.rates) != sorted(self.rates, reverse=True) or sum(self.rates) > 1:
            raise ValueError(f"rates are chances of siblings: falling, and at most 1 together; got {self.rates}")


class Stree(DraftModel):
    """Drafts a static tree with a smaller model."""

    def __init__(self, options: StreeOptions = StreeOptions()) -> None:
        if options.model is None:
            raise ValueError(
                "stree needs a smaller model of the target's tokenizer: drafter=<folder, hub name or live model>, or "
                "the option model="
            )
        self.options, self.small = options, drafting_target(options.model)
        super().__init__(self.small, self._tree(options.nodes or max(SIZES) - 1))

    def bind(self, target: Target) -> None:
        super().bind(target)
        refuse_other_tokenizer(self.small, target)
        if self.options.nodes is None:
            self.shape = self._tree(paying_nodes(target, self.model, self._tree, self.options.rates))

    def _tree(self, nodes: int) -> Static:
        rates = self.options.rates[:1] if self.options.form == "chain" else self.options.rates
        return Static(*likeliest_tree(rates, self.options.depth, nodes))
