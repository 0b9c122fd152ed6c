"""`sequoia`: a smaller model's static tree, the best one for the acceptance that was measured and for the machine.

Sequoia (Chen et al., arXiv 2402.12374). The r-th child of a node is taken to be the accepted one with a probability
that depends on r alone. These rates are counted in every round; a call begins with the best tree for what the calls
before it counted (`mmspec.core.drafters.static_tree`), of the size that promises the most units per second on this
machine (`mmspec.bench.timing`). Until enough is counted, `rates` stand in.
The tree of a call is chosen before its first draw, so that children keep the distribution that they were drawn from.
The published code draws the numbers for children once for a prompt and uses them in every round, which biases pairs of
units; here every round has its own.
Guarantee: exact under `match` and `recursive-rejection`, whatever was counted or timed; drafts, not outputs, depend on
earlier calls.
Knobs: `nodes` (a number instead of timing passes), `rates` (what is expected at first), `prior` (nodes that these are
worth: higher changes the tree more slowly).
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.bench.timing import SIZES, paying_nodes
from mmspec.core.drafters.draft_model import DraftModelMemory
from mmspec.core.drafters.shapes import Static
from mmspec.core.drafters.static_tree import likeliest_tree
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Step
from mmspec.kits.text.small_model import SmallModelDrafter, SmallModelOptions
from mmspec.registry.options import option
from mmspec_text.specs import SEQUOIA


@dataclass(frozen=True)
class SequoiaOptions(SmallModelOptions):
    """Options of `sequoia`."""

    nodes: Annotated[int, Field(ge=1, le=255)] | None = option(
        None, "tokens per draft; by default as many as pay on this machine, measured once"
    )
    rates: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = option(
        (0.6, 0.15, 0.06, 0.03), "chance of the child of each rank, before any is counted"
    )
    prior: Annotated[float, Field(gt=0)] = option(
        50.0, "nodes that `rates` are worth; higher changes the tree more slowly"
    )

    def __post_init__(self) -> None:
        if not self.rates or sum(self.rates) > 1:
            raise ValueError(f"rates are chances of siblings, at most 1 together; got {self.rates}")


class Sequoia(SmallModelDrafter):
    """Drafts a static tree with a smaller transformers model."""

    def __init__(self, options: SequoiaOptions = SequoiaOptions()) -> None:
        self.options, self.nodes = options, options.nodes or max(SIZES) - 1
        # [rank]: children of that rank that were verified behind accepted nodes, and how many of them were accepted
        self.tried = self.right = torch.zeros(len(options.rates))
        super().__init__(options, SEQUOIA.name, self.tree(self.nodes, self.nodes))

    def bind(self, target: Target) -> None:
        super().bind(target)
        if self.options.nodes is None:
            self.nodes = paying_nodes(target, self.model, lambda nodes: self.tree(nodes, nodes), self.rates)

    def width(self, k: int) -> int:
        return self.nodes if k else 0

    def start(self, state: State, inputs: Any) -> DraftModelMemory:
        self.shape = self.tree(self.nodes, state.budget.k)
        return super().start(state, inputs)

    def observe(self, state: State, step: Step) -> None:
        super().observe(state, step)
        tried, right = counted(step, len(self.options.rates))
        self.tried, self.right = self.tried.to(tried.device) + tried, self.right.to(right.device) + right

    @property
    def rates(self) -> tuple[float, ...]:
        """The chance of each rank, by what was counted; a rank is never better than those before it."""
        prior = self.options.prior
        expected = torch.tensor(self.options.rates)
        found = (self.right.cpu() + prior * expected) / (self.tried.cpu() + prior)
        return tuple(found.cummin(0).values.tolist())

    def tree(self, nodes: int, depth: int) -> Static:
        """The best tree of so many nodes and levels."""
        return Static(*likeliest_tree(self.rates, max(depth, 1), nodes))


def counted(step: Step, ranks: int) -> tuple[Tensor, Tensor]:
    """Of a round: children of each of the first ranks behind nodes where a unit was emitted, and those accepted."""
    index, reached = step.draft.index, step.verdict.emitted(step.count)
    parent = index.parent[:, 1:].expand(len(reached), -1)
    tried = step.draft.valid[:, 1:] & reached.gather(1, parent)
    rank = index.rank[:, 1:].expand_as(tried)
    of_rank = rank[..., None] == torch.arange(ranks, device=rank.device)
    all_, right = ((of_rank & nodes[..., None]).sum((0, 1)).float() for nodes in (tried, tried & reached[:, 1:]))
    return all_, right
