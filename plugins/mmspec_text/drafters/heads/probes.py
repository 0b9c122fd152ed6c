"""A target whose passes carry trained inputs behind their nodes: probes, which are scored and never accepted.

Behind a node hangs a chain of probes, at the positions that follow it. They see the node's path and one another; no
node sees them, so that nodes have the scores that they have without them. Probes are no units: their embeddings take
the place of those of the units that stand in for them. Wherever a pass stops, the probes behind the last accepted node
say what the next draft is. Layers of the target may change at probes, and at them alone (`Gate`).
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from mmspec.core.distributions import take_nodes
from mmspec.core.frozen import checksums
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, Step, TargetOutput
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.target_cache import TransformersTargetCache
from mmspec.hosts.traceable import Traceable


@dataclass(frozen=True)
class Probing:
    """A pass that carries probes."""

    target: "ProbedTarget"  # whose probes these are
    nodes: int  # the number of nodes in front of the probes
    number: Tensor  # which probe is where, `[batch | 1, place]`


_probing: Traceable[Probing] = Traceable("mmspec_probes")
"""The pass that runs, or is traced, here; the model may run in another thread, for somebody else."""


class Gate(Protocol):
    """A module of torch that changes a target's layers at probes."""

    def hooks(self, model: nn.Module, own: Callable[[], int | None]) -> list[tuple[nn.Module, Callable[..., Tensor]]]:
        """The layers of a live model that change, each with its hook. `own` counts the rows before the probes of the
        pass that runs; None: there are none, or it is somebody else's.
        """

    def parameters(self) -> Iterator[nn.Parameter]:
        """Its weights."""

    def to(self, device: torch.device, dtype: torch.dtype) -> Any:
        """Move it, in place."""


class ProbedTarget:
    """See the module; `TargetOutput.auxiliary` holds the logits at probes; with a `gate` the states there.

    `embeddings` are `[probe, hidden]`. `counts` are the probes behind every node, the root first, of a row whose draft
    has 0, 1, … levels, and none behind further nodes; None: all of them behind every node.
    """

    def __init__(
        self,
        target: TransformersTarget,
        embeddings: Tensor,
        counts: Sequence[Sequence[int]] | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.target, self.embeddings, self.counts, self.gate = target, embeddings, counts, gate
        rows = [torch.tensor(row, device="cpu") for row in counts or ()]
        self._counts = pad_sequence(rows, batch_first=True) if rows else None
        self.offers, self.vocab, self.context = target.offers, target.vocab, target.context
        self.commit, self.truncate = target.commit, target.truncate  # of caches, which are the target's own
        self.synced, self.export = target.synced, target.export
        self._embed = self._embedding_hook()  # hooks are the same objects in every pass, which compiled code checks
        self._gates = [] if gate is None else gate.hooks(target.model, self._own_rows)
        self._trees: dict[tuple[int, ...] | None, TreeIndex] = {}  # of captured rounds, by the draft's tree

    @property
    def model(self) -> Any:
        """The live model."""
        return self.target.model

    @property
    def prefers_one_shape(self) -> bool:
        return self.target.prefers_one_shape

    def pass_nodes(self, nodes: int) -> int:
        behind = nodes * len(self.embeddings) if self.counts is None else max(sum(row[:nodes]) for row in self.counts)
        return nodes + behind

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        self._place()
        return self.target.start(inputs, limit, self.pass_nodes(width))

    def start_fixed(self, inputs: Any, limit: int, width: int) -> Prefill:
        self._place()
        return self.target.start_fixed(inputs, limit, self.pass_nodes(width))

    def verify(self, cache: TransformersTargetCache, draft: Draft, first: int = 0) -> TargetOutput:
        """As `Target.verify`; `auxiliary` is `[batch, node, probe, …]`, -inf where a node carries no such probe."""
        if first:
            return self.target.verify(cache, draft, first)
        with torch.inference_mode(), self.ready(cache, draft.nodes):
            return self.forward(cache, draft)

    @contextmanager
    def ready(self, cache: TransformersTargetCache, nodes: int) -> Iterator[None]:
        """As `Capturable.ready`; the hooks of the probes act inside `forward` alone."""
        with self.target.ready(cache, self.pass_nodes(nodes)), ExitStack() as hooks:
            for module, hook in ((self.model.get_input_embeddings(), self._embed), *self._gates):
                hooks.callback(module.register_forward_hook(hook).remove)
            yield

    def forward(self, cache: TransformersTargetCache, draft: Draft, first: int = 0) -> TargetOutput:
        if first:
            return self.target.forward(cache, draft, first)
        nodes, probes, listed = draft.nodes, len(self.embeddings), draft.index.listed
        counts: Tensor | None = None
        tree: TreeIndex | None = None
        if self._counts is not None:
            levels = (draft.index.depth * draft.valid).amax(1).clamp(max=len(self._counts) - 1)
            counts = pad(self._counts, (0, nodes - self._counts.shape[1]))[levels]
        elif listed is not None:
            tree = self._trees.get(listed) or probed_index(listed, probes, draft.units.device)
        whole, number, place = probed(draft, counts, self.pass_nodes(nodes) - nodes, probes, tree)
        with _probing.holding(Probing(self, nodes, number)):
            output = self.target.forward(cache, whole)
        at_probes = output.logits if self.gate is None else output.hidden
        assert output.logits is not None and at_probes is not None
        found = at_probes[:, nodes:]
        if counts is not None:
            found = take_nodes(found, place.clamp(min=0)).masked_fill(place[..., None] < 0, -torch.inf)
        return TargetOutput(output.logits[:, :nodes], auxiliary=found.unflatten(1, (nodes, probes)))

    def capture_key(self, cache: TransformersTargetCache) -> Hashable:
        """With the numbers of the probes, and where they hang, which a captured pass keeps."""
        return self.target.capture_key(cache), self.counts, len(self.embeddings), checksums(self._weights())

    def held(self, cache: TransformersTargetCache, nodes: int) -> TransformersTargetCache:
        held = self.target.held(cache, self.pass_nodes(nodes))
        self.expect(held, TreeIndex.static([-1], cache.slots.length.device))
        return held

    def expect(self, cache: TransformersTargetCache, index: TreeIndex) -> None:
        if self.counts is None and index.listed is not None:
            self._trees[index.listed] = whole = probed_index(index.listed, len(self.embeddings), index.parent.device)
            self.target.expect(cache, whole)

    def _place(self) -> None:
        """Take the embeddings to where the model is, which may have been moved or cast since the last call."""
        place = self.model.get_input_embeddings().weight
        self.embeddings = self.embeddings.to(place.device, place.dtype)
        self._counts = None if self._counts is None else self._counts.to(place.device)
        if self.gate is not None:
            self.gate.to(place.device, place.dtype)

    def _weights(self) -> list[Tensor]:
        return [self.embeddings, *(() if self.gate is None else self.gate.parameters())]

    def _own_rows(self) -> int | None:
        """The rows of the pass that runs here which are nodes; None where it is none of this target's."""
        now = _probing.get()
        here = now is not None and now.target._embed is self._embed  # also of a copy of this target
        return now.nodes if now is not None and here else None

    def _embedding_hook(self) -> Callable[..., Tensor]:
        """A hook that gives units behind the first nodes of a pass the embeddings of probes."""

        def replaced(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            now = _probing.get()
            if now is None or now.target._embed is not replaced:
                return output
            own = now.target.embeddings.to(output.device, output.dtype)[now.number]
            return torch.cat([output[:, : now.nodes], own.repeat(len(output) // len(own), 1, 1)], 1)

        return replaced


def behind_root(step: Step) -> Tensor:
    """The contents of the probes behind the last accepted node of a round, `[batch, probe, …]`; the root follows it."""
    found = step.scores.auxiliary
    assert found is not None, "the target scores probes in every pass of such a call"
    path = pad(step.verdict.path.clamp(min=0), (1, 0))  # the root first
    last = path.gather(1, (step.count - 1).clamp(min=0)[:, None])
    return take_nodes(found.flatten(2), last)[:, 0].unflatten(1, found.shape[2:])


def probed(
    draft: Draft, counts: Tensor | None, places: int, probes: int, index: TreeIndex | None = None
) -> tuple[Draft, Tensor, Tensor]:
    """A rooted draft with chains of probes, at most `probes` each, behind its own nodes; they come last, node by node.

    `counts [batch, node]` are the probes behind every node, at least one behind the root; None: all of them. A row has
    room for so many `places`; what is left over is invalid. `index` is the tree of both, if it is known.

    Returned are the draft; which probe is at each place, `[batch | 1, place]`; and the place of probe i behind node j
    at `j * probes + i`, `[batch | 1, node * probes]`, -1 where there is none.
    """
    nodes, rows, place = draft.nodes, len(draft.units), torch.arange(places, device=draft.units.device)[None]
    owner, number, found = place // probes, place % probes, place
    if counts is None:
        valid = draft.valid.repeat_interleave(probes, 1)
    else:
        ends = counts.cumsum(1)
        # A place belongs to the first node of which not all probes lie before it.
        begins, owner = ends - counts, (ends[:, None] <= place[..., None]).sum(-1)
        empty = owner >= nodes
        owner = owner.masked_fill(empty, 0)
        number = (place - begins.gather(1, owner)).masked_fill(empty, 0)
        valid = draft.valid.gather(1, owner) & ~empty
        order = torch.arange(probes, device=counts.device)
        found = torch.where(order < counts[..., None], begins[..., None] + order, -1).flatten(1)
    if index is None:
        behind = torch.where(number == 0, owner, place + (nodes - 1)).expand(rows, -1)
        parents = torch.cat([draft.index.parent.expand(rows, -1), behind], 1)
        index = TreeIndex.dynamic(parents, draft.index.deepest + probes)
    units = torch.cat([draft.units, draft.units[:, :1].expand(-1, places)], 1)
    return Draft(units, index, torch.cat([draft.valid, valid], 1)), number, found


def probed_index(listed: Sequence[int], probes: int, device: torch.device) -> TreeIndex:
    """A listed tree with a chain of so many nodes behind each of its own; they come last, node by node."""
    nodes = len(listed)
    new = (i // probes if i % probes == 0 else nodes + i - 1 for i in range(nodes * probes))
    return TreeIndex.static([*listed, *new], device)
