"""The recurrent layers of the slot cache: one committed state per operation, rolled over what was accepted.

To a mixer such a layer never has a previous state: whatever the number of nodes, it takes its way for many tokens, and
the operations on that way, which are ours for the length of a pass, find the state here. So one token is a tree of one
node, and the ways for single tokens, which differ in detail, are never taken.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from mmspec.hosts.tree_op import Branches, KeptNodes, TreeOp


@dataclass
class OperationState:
    """One operation of one layer.

    Attributes:
        op: How it is computed and rolled on.
        state: Committed; float32 where it is recurrent. None before the first commit.
        stash: Of the last pass, until it is committed.
    """

    op: TreeOp | None = None
    state: Tensor | None = None
    stash: Any = None


class RecurrentLayer(LinearAttentionCacheLayerMixin):
    """The operations of one layer, by kind and order: a layer may have several of a kind."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: dict[tuple[str, int], OperationState] = {}
        self._calls: Counter[str] = Counter()

    def open(self) -> None:
        """A pass begins."""
        self._calls.clear()

    def run(self, op: TreeOp, branches: Branches, args: Any, kwargs: Any) -> Any:
        """The next operation of the layer in this pass: what the model's own function would return."""
        fold = self.operations.setdefault((op.kind, self._calls[op.kind]), OperationState())
        self._calls[op.kind] += 1
        out, stash = op.forward(branches, fold.state, *args, **kwargs)
        fold.op, fold.stash = op, stash
        return out

    def commit(self, kept: KeptNodes) -> None:
        """Roll every state over the kept nodes of the last pass."""
        for fold in self.operations.values():
            assert fold.op is not None and fold.stash is not None, "a commit without a pass"
            rolled = fold.op.commit(fold.state, fold.stash, kept)
            if fold.state is None:
                fold.state = rolled
            else:
                fold.state.copy_(rolled)  # in place: its address stays
            fold.stash = None

    def copy(self, other: "RecurrentLayer") -> None:
        """Begin where another cache stands."""
        self.operations = {key: OperationState(fold.op, _copied(fold.state)) for key, fold in other.operations.items()}

    def put(self, kind: str, states: dict[int, Tensor | None]) -> None:
        """Take over states that transformers made."""
        for number, state in states.items():
            if state is not None:
                kept = state.float() if kind == "recurrent" else state
                self.operations[kind, number] = OperationState(None, kept.clone())

    def states(self, kind: str) -> dict[int, Tensor]:
        """Committed states of a kind, by their order."""
        found = {number: fold.state for (own, number), fold in self.operations.items() if own == kind}
        return {number: state for number, state in found.items() if state is not None}

    # What follows is asked of transformers' own layers; ours is written by commits alone.

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("states of mmspec's cache are made by commits")

    def update_conv_state(self, conv_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        return conv_states

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        return recurrent_states


def _copied(state: Tensor | None) -> Tensor | None:
    return None if state is None else state.clone()
