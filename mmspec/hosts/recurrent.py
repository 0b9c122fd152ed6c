"""The recurrent layers of the slot cache: one committed state per operation, advanced over the accepted path.

A mixer is told that its layer has no previous state. It therefore takes its code path for many tokens, whatever the
number of nodes, and the tree operations on that path (`mmspec.hosts.dispatch`) find the state here. A single token is
a tree of one node; the mixers' separate code paths for single tokens are never used.

Operations say themselves in which dtype they compute, so autocast is off in them, as it is in the fused kernels of
recurrent layers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from mmspec.hosts.devices import without_autocast
from mmspec.hosts.tree_op import Branches, KeptNodes, TreeOp


@dataclass
class OperationState:
    """The state of one operation of one layer."""

    op: TreeOp | None = None  # the tree operation
    # The committed state; of the layer's dtype if its kind is `recurrent`. None before the first commit.
    state: Tensor | None = None
    stash: Any = None  # what the operation kept of the last pass, until that pass is committed


class RecurrentLayer(LinearAttentionCacheLayerMixin):
    """The operations of one layer by kind and order, as a layer may have several of a kind; states of kind `recurrent`
    have this dtype (`Branches.dtype`).
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dtype = dtype
        self.operations: dict[tuple[str, int], OperationState] = {}
        self._calls: Counter[str] = Counter()

    def open(self) -> None:
        """Begin a pass."""
        self._calls.clear()

    def run(self, op: TreeOp, branches: Branches, args: Any, kwargs: Any) -> Any:
        """Run the layer's next operation of this pass. Returns what the model's own function would return."""
        operation = self.operations.setdefault((op.kind, self._calls[op.kind]), OperationState())
        self._calls[op.kind] += 1
        with without_autocast(branches.ancestor.device):
            out, stash = op.forward(branches, operation.state, *args, **kwargs)
        operation.op, operation.stash = op, stash
        return out

    def commit(self, kept: KeptNodes) -> None:
        """Advance every state over the kept nodes of the last pass."""
        for operation in self.operations.values():
            assert operation.op is not None and operation.stash is not None, "a commit without a pass"
            with without_autocast(kept.nodes.device):
                state = operation.op.commit(operation.state, operation.stash, kept)
            if operation.state is None:
                operation.state = state
            else:
                operation.state.copy_(state)  # in place: its address stays
            operation.stash = None
        self._calls.clear()

    def take(self, rows: Tensor) -> None:
        """Hold copies of the states of the rows `rows [n]`, and nothing else."""
        for operation in self.operations.values():
            if operation.state is not None:
                operation.state = operation.state[rows.to(operation.state.device)]

    def join(self, others: "Sequence[RecurrentLayer]") -> None:
        """Hold the states of other caches' layer behind its own; of caches that have read a prompt."""
        for key, own in self.operations.items():
            states = [own.state, *(other.operations[key].state for other in others)]
            own.op = own.op or next((each.op for other in others if (each := other.operations[key]).op), None)
            own.state = torch.cat([state for state in states if state is not None])

    def copy(self, other: "RecurrentLayer") -> None:
        """Copy the committed states of another cache's layer."""
        self.operations = {
            key: OperationState(each.op, self._copied(key[0], each.state)) for key, each in other.operations.items()
        }

    def load(self, other: "RecurrentLayer") -> None:
        """`copy`, in place where there is a state already."""
        for key, each in other.operations.items():
            own = self.operations.get(key)
            if own is None or own.state is None or each.state is None:
                with torch.inference_mode(False):
                    self.operations[key] = OperationState(each.op, self._copied(key[0], each.state))
            else:
                own.state.copy_(each.state)

    def adopt(self, kind: str, states: dict[int, Tensor | None], operations: int = 0) -> None:
        """Copy states of a kind that transformers computed; of more operations than states, the first holds all."""
        first = states.get(0)
        if first is not None and operations > len(states):
            states = dict(enumerate(first.unbind(1)))
        for number, state in states.items():
            if state is not None:
                self.operations[kind, number] = OperationState(None, self._copied(kind, state))

    def _copied(self, kind: str, state: Tensor | None) -> Tensor | None:
        if state is None:
            return None
        return state.to(self.dtype, copy=True) if kind == "recurrent" else state.clone()

    def states(self, kind: str) -> dict[int, Tensor]:
        """The committed states of a kind, by their order."""
        found = {number: each.state for (own, number), each in self.operations.items() if own == kind}
        return {number: state for number, state in found.items() if state is not None}

    # The interface of transformers' recurrent layers. Only commits write states, so updates return their input.

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("states of mmspec's cache are made by commits")

    def update_conv_state(self, conv_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        return conv_states

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        return recurrent_states
