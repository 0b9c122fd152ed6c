"""A target whose passes carry trained inputs behind every node: probes, which are scored and never accepted.

Behind a node hangs a chain of probes, at the positions that follow it. They see the node's path and one another; no
node sees them, so that nodes have the scores that they have without them. Probes are no units: their embeddings take
the place of those of the units that stand in for them. Wherever a pass stops, the probes behind the last accepted node
say what the next draft is.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.distributions import take_nodes
from mmspec.core.hidden import FINAL
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, Step, TargetOutput
from mmspec.hosts.target import TransformersTarget, TransformersTargetCache

Adapted = Callable[[int], AbstractContextManager[None]]


class ProbedTarget:
    """See the module; `TargetOutput.auxiliary` holds what the pass computes of probes.

    Args:
        target: The target.
        embeddings: `[probe, hidden]`.
        adapted: A block in which the model computes otherwise behind so many first nodes of a pass; None: it does not.
        states: Whether `auxiliary` is the states that the output layer reads, and not logits.
    """

    def __init__(
        self, target: TransformersTarget, embeddings: Tensor, adapted: Adapted | None = None, states: bool = False
    ) -> None:
        self.target = target.with_hidden((FINAL,)) if states else target
        self.embeddings, self.adapted, self.states = embeddings, adapted, states
        self.offers, self.vocab, self.context = target.offers, target.vocab, target.context

    @property
    def model(self) -> Any:
        """The live model."""
        return self.target.model

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        place = self.model.get_input_embeddings().weight  # the model may have been moved or cast since the last call
        self.embeddings = self.embeddings.to(place.device, place.dtype)
        return self.target.start(inputs, limit, width * (1 + len(self.embeddings)))

    def verify(self, cache: TransformersTargetCache, draft: Draft, first: int = 0) -> TargetOutput:
        """As `Target.verify`; `auxiliary` is `[batch, node, probe, vocab]`, or `[batch, node, probe, hidden]`."""
        nodes, probes = draft.nodes, len(self.embeddings)
        if first:
            return self.target.verify(cache, draft, first)
        with self._embedded(nodes), nullcontext() if self.adapted is None else self.adapted(nodes):
            output = self.target.verify(cache, probed(draft, probes))
        assert output.logits is not None
        found = output.hidden if self.states else output.logits
        assert found is not None
        return TargetOutput(output.logits[:, :nodes], auxiliary=found[:, nodes:].unflatten(1, (nodes, probes)))

    def commit(self, cache: TransformersTargetCache, path: Tensor, count: Tensor) -> None:
        self.target.commit(cache, path, count)

    def truncate(self, cache: TransformersTargetCache, length: Tensor) -> None:
        self.target.truncate(cache, length)

    def synced(self, cache: TransformersTargetCache, emitted: Sequence[int]) -> None:
        self.target.synced(cache, emitted)

    def export(self, cache: TransformersTargetCache, sequences: Tensor, emitted: Tensor) -> Any:
        return self.target.export(cache, sequences, emitted)

    @contextmanager
    def _embedded(self, nodes: int) -> Iterator[None]:
        """A block in which units behind the first `nodes` of a pass have the embeddings of probes."""
        thread = threading.get_ident()

        def replaced(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            if threading.get_ident() != thread:  # the model may run in another thread, for somebody else
                return output
            own = self.embeddings.to(output.device, output.dtype).repeat(nodes, 1).expand(len(output), -1, -1)
            return torch.cat([output[:, :nodes], own], 1)

        hook = self.model.get_input_embeddings().register_forward_hook(replaced)
        try:
            yield
        finally:
            hook.remove()


def behind_root(step: Step) -> Tensor:
    """What the probes behind the last accepted node of a round hold, `[batch, probe, …]`; the root follows it."""
    found = step.scores.auxiliary
    assert found is not None, "the target scores probes in every pass of such a call"
    path = torch.nn.functional.pad(step.verdict.path.clamp(min=0), (1, 0))  # the root first
    last = path.gather(1, (step.count - 1).clamp(min=0)[:, None])
    return take_nodes(found.flatten(2), last)[:, 0].unflatten(1, found.shape[2:])


def probed(draft: Draft, probes: int) -> Draft:
    """A rooted draft with a chain of so many nodes behind each of its own; they come last, node by node."""
    nodes, index = draft.nodes, draft.index
    order = torch.arange(nodes * probes, device=draft.units.device)
    behind = torch.where(order % probes == 0, order // probes, nodes + order - 1)
    if index.listed is not None:
        new = (i // probes if i % probes == 0 else nodes + i - 1 for i in range(nodes * probes))
        tree = TreeIndex.static([*index.listed, *new], draft.units.device)
    else:
        parents = torch.cat([index.parent, behind.expand(len(index.parent), -1)], 1)
        tree = TreeIndex.dynamic(parents, index.deepest + probes)
    units = torch.cat([draft.units, draft.units[:, :1].expand(-1, len(order))], 1)
    return Draft(units, tree, torch.cat([draft.valid, draft.valid.repeat_interleave(probes, 1)], 1))
