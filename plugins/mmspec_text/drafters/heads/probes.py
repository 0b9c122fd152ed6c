"""A target whose passes carry trained inputs behind every node: probes, which are scored and never accepted.

Behind a node hangs a chain of probes, at the positions that follow it. They see the node's path and one another; no
node sees them, so that nodes have the scores that they have without them. Probes are no units: their embeddings take
the place of those of the units that stand in for them. Wherever a pass stops, the probes behind the last accepted node
say what the next draft is.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mmspec.core.distributions import take_nodes
from mmspec.core.frozen import checksums
from mmspec.core.hidden import FINAL
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, Step, TargetOutput
from mmspec.hosts.attention import model_lock
from mmspec.hosts.captured_pass import CapturedTransformersPass
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.target_cache import TransformersTargetCache
from mmspec.hosts.traceable import Traceable


class Adapter(Protocol):
    """What changes a model at probes alone."""

    def on(self, model: nn.Module) -> AbstractContextManager[None]:
        """A block in which its hooks are on the model; they act where `gated` says so, and are the same every time."""
        ...

    def weights(self) -> Sequence[Tensor]:
        """Its weights."""
        ...


@dataclass(frozen=True)
class Probing:
    """A pass that carries probes."""

    target: "ProbedTarget"  # whose probes these are
    nodes: int  # the number of nodes in front of the probes


_probing: Traceable[Probing] = Traceable("mmspec_probes")
"""The pass that runs, or is traced, here; the model may run in another thread, for somebody else."""


def gated(adapter: Adapter) -> int | None:
    """The number of nodes in front of the probes of the pass that runs, or is traced, here; None: the adapter rests."""
    now = _probing.get()
    return None if now is None or now.target.adapter is not adapter else now.nodes


class ProbedTarget:
    """See the module; `TargetOutput.auxiliary` holds what the pass computes of probes.

    Args:
        target: The target.
        embeddings: `[probe, hidden]`.
        adapter: Changes the model at probes; None: nothing does.
        states: Whether `auxiliary` is the states that the output layer reads, and not logits.
    """

    def __init__(
        self, target: TransformersTarget, embeddings: Tensor, adapter: Adapter | None = None, states: bool = False
    ) -> None:
        self.target = target.with_hidden((FINAL,)) if states else target
        self.embeddings, self.adapter, self.states = embeddings, adapter, states
        self.offers, self.vocab, self.context = target.offers, target.vocab, target.context
        self._embed = self._embedding_hook()

    @property
    def model(self) -> Any:
        """The live model."""
        return self.target.model

    @property
    def prefers_one_shape(self) -> bool:
        return self.target.prefers_one_shape

    def pass_nodes(self, nodes: int) -> int:
        return nodes * (1 + len(self.embeddings))

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        self._place()
        return self.target.start(inputs, limit, self.pass_nodes(width))

    def start_fixed(self, inputs: Any, limit: int, width: int) -> Prefill:
        self._place()
        return self.target.start_fixed(inputs, limit, self.pass_nodes(width))

    def verify(self, cache: TransformersTargetCache, draft: Draft, first: int = 0) -> TargetOutput:
        """As `Target.verify`; `auxiliary` is `[batch, node, probe, vocab]`, or `[batch, node, probe, hidden]`."""
        if first:
            return self.target.verify(cache, draft, first)
        with self.hooked(), self.probing(draft.nodes):
            output = self.target.verify(cache, probed(draft, len(self.embeddings)))
        return self.split(output, draft.nodes)

    def commit(self, cache: TransformersTargetCache, path: Tensor, count: Tensor) -> None:
        self.target.commit(cache, path, count)

    def truncate(self, cache: TransformersTargetCache, length: Tensor) -> None:
        self.target.truncate(cache, length)

    def synced(self, cache: TransformersTargetCache, emitted: Sequence[int]) -> None:
        self.target.synced(cache, emitted)

    def export(self, cache: TransformersTargetCache, sequences: Tensor, emitted: Tensor) -> Any:
        return self.target.export(cache, sequences, emitted)

    def capture_key(self, cache: TransformersTargetCache) -> Hashable:
        """With the numbers of the probes and of the adapter, which a captured pass keeps."""
        own = [self.embeddings, *(() if self.adapter is None else self.adapter.weights())]
        return self.target.capture_key(cache), len(self.embeddings), self.states, checksums(own)

    def captured_pass(
        self, cache: TransformersTargetCache, nodes: int, index: TreeIndex | None
    ) -> "CapturedProbedPass":
        whole = None if index is None else probed_index(index, len(self.embeddings))
        return CapturedProbedPass(self, self.target.captured_pass(cache, self.pass_nodes(nodes), whole), whole)

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """A block in which the hooks are on the model, and its lock is held; they act inside `probing`."""
        with model_lock(self.model):
            hook = self.model.get_input_embeddings().register_forward_hook(self._embed)
            try:
                with nullcontext() if self.adapter is None else self.adapter.on(self.model):
                    yield
            finally:
                hook.remove()

    def probing(self, nodes: int) -> AbstractContextManager[None]:
        """A block, which torch can trace, in whose pass there are probes behind the first `nodes` nodes."""
        return _probing.holding(Probing(self, nodes))

    def split(self, output: TargetOutput, nodes: int) -> TargetOutput:
        """The output at `nodes` nodes, and that of their probes beside it."""
        assert output.logits is not None
        found = output.hidden if self.states else output.logits
        assert found is not None
        behind = found[:, nodes:].unflatten(1, (nodes, len(self.embeddings)))
        return TargetOutput(output.logits[:, :nodes], auxiliary=behind)

    def _place(self) -> None:
        """Take the embeddings to where the model is, which may have been moved or cast since the last call."""
        place = self.model.get_input_embeddings().weight
        self.embeddings = self.embeddings.to(place.device, place.dtype)

    def _embedding_hook(self) -> Callable[..., Tensor]:
        """A hook that gives units behind the first nodes of a pass the embeddings of probes."""

        def replaced(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            now = _probing.get()
            if now is None or now.target is not self:
                return output
            own = self.embeddings.to(output.device, output.dtype).repeat(now.nodes, 1).expand(len(output), -1, -1)
            return torch.cat([output[:, : now.nodes], own], 1)

        return replaced


class CapturedProbedPass:
    """A captured pass that carries probes.

    Args:
        target: Whose probes these are.
        inner: The pass over nodes and probes.
        index: The tree of both, in every pass; None: each draft brings its own.
    """

    def __init__(self, target: ProbedTarget, inner: CapturedTransformersPass, index: TreeIndex | None) -> None:
        self.target, self.inner, self.index = target, inner, index

    def lone(self) -> "CapturedProbedPass":
        index = TreeIndex.chain(1 + len(self.target.embeddings), self.inner.slots.length.device)
        return CapturedProbedPass(self.target, self.inner.over(index), index)

    def load(self, cache: TransformersTargetCache) -> None:
        self.inner.load(cache)

    def fall_back(self) -> str:
        return self.inner.fall_back()

    @contextmanager
    def ready(self) -> Iterator[None]:
        with self.inner.ready(), self.target.hooked():
            yield

    def verify(self, draft: Draft) -> TargetOutput:
        with self.target.probing(draft.nodes):
            output = self.inner.verify(probed(draft, len(self.target.embeddings), self.index))
        return self.target.split(output, draft.nodes)

    def commit(self, path: Tensor, count: Tensor) -> None:
        self.inner.commit(path, count)


def behind_root(step: Step) -> Tensor:
    """What the probes behind the last accepted node of a round hold, `[batch, probe, …]`; the root follows it."""
    found = step.scores.auxiliary
    assert found is not None, "the target scores probes in every pass of such a call"
    path = torch.nn.functional.pad(step.verdict.path.clamp(min=0), (1, 0))  # the root first
    last = path.gather(1, (step.count - 1).clamp(min=0)[:, None])
    return take_nodes(found.flatten(2), last)[:, 0].unflatten(1, found.shape[2:])


def probed(draft: Draft, probes: int, index: TreeIndex | None = None) -> Draft:
    """A rooted draft with a chain of so many nodes behind each of its own; they come last, node by node.

    Args:
        draft: The draft.
        probes: Nodes of a chain.
        index: The tree of both, if it is known; None: it is computed.
    """
    more = draft.nodes * probes
    tree = probed_index(draft.index, probes) if index is None else index
    units = torch.cat([draft.units, draft.units[:, :1].expand(-1, more)], 1)
    return Draft(units, tree, torch.cat([draft.valid, draft.valid.repeat_interleave(probes, 1)], 1))


def probed_index(index: TreeIndex, probes: int) -> TreeIndex:
    """A tree with a chain of so many nodes behind each of its own; they come last, node by node."""
    nodes = index.nodes
    if index.listed is not None:
        new = (i // probes if i % probes == 0 else nodes + i - 1 for i in range(nodes * probes))
        return TreeIndex.static([*index.listed, *new], index.parent.device)
    order = torch.arange(nodes * probes, device=index.parent.device)
    behind = torch.where(order % probes == 0, order // probes, nodes + order - 1)
    parents = torch.cat([index.parent, behind.expand(len(index.parent), -1)], 1)
    return TreeIndex.dynamic(parents, index.deepest + probes)
