"""Units that some layers of a model have not seen yet, with the states that the layers before them left.

Where the first layers of a draft model are sure of a unit, its other layers do not run. They run later, over all units
that wait for them at once, before they run over a unit of their own: else its attention would miss keys. The committed
units that wait lie behind those that are in the cache of these layers, row by row as many as there are; the nodes of
the present draft lie behind them.

A pass runs in parts: the layers before and behind a part are left out (`mmspec_zoo.sublayers`), and its first layer is
given the states in the place of those that reach it. What the model does around its layers runs in every part: ids are
embedded, which nobody reads behind the first layer, and norm and output layer give the scores of the sub-model that
ends with the part. Parts whose layers are all of the model's, one after the other, are the whole pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.distributions import take_nodes
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft
from mmspec.hosts.devices import device_of
from mmspec.hosts.features import Reading, Record
from mmspec_zoo.sublayers import SubLayers


@dataclass(frozen=True)
class SplitPass:
    """The layers `begin … end - 1` of a model."""

    sublayers: SubLayers
    begin: int  # the first layer of the part
    end: int  # the layer behind its last one

    @contextmanager
    def alone(self, states: Tensor | None) -> Iterator[Record]:
        """A block in which passes of this thread run this part alone; other threads wait to run the model.

        Its first layer is given `states [batch, node, hidden]`; None if it is the model's first one. Yields what keeps
        the states behind the part, `Record.states`.
        """
        layers = self.sublayers.layers
        gone = [layer for layer in range(len(layers)) if not self.begin <= layer < self.end]
        reading = Reading(self.sublayers.model_info, (self.end,))
        left_out = self.sublayers.left_out(part for layer in gone for part in (2 * layer, 2 * layer + 1))
        with left_out, given_states(layers[self.begin], states), reading as record:
            yield record


def split(sublayers: SubLayers, ends: Sequence[int]) -> list[SplitPass]:
    """The parts of a pass that end before these layers; refuses layers that hand on more than their states."""
    count = len(sublayers.layers)
    if not ends or list(ends) != sorted({*ends}) or not 1 <= ends[0] <= ends[-1] <= count:
        raise ValueError(
            f"a model of {count} layers has sub-models of its first 1 to {count} layers, the smaller ones first; got "
            f"{', '.join(map(str, ends)) or 'none'}"
        )
    parts = [SplitPass(sublayers, begin, end) for begin, end in zip((0, *ends), ends, strict=False)]
    _refuse_unsplit(sublayers, [*parts, *([SplitPass(sublayers, ends[-1], count)] if ends[-1] < count else [])])
    return parts


@torch.inference_mode()
def _refuse_unsplit(sublayers: SubLayers, parts: Sequence[SplitPass]) -> None:
    """Compare a pass in parts with the whole one, over two units."""
    model = sublayers.model_info.model
    ids = torch.tensor([[0, 1]], device=device_of(model))
    call = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    refusal = f"the layers of {type(model).__name__} hand on more than their states, so that its passes have no parts"
    with sublayers.left_out(()):
        whole, states = model(**call).logits, None
    try:
        for part in parts:
            with part.alone(states) as record:
                logits = model(**call).logits
            states = record.states
    except Exception as error:  # what a layer misses is the model's own affair
        raise ValueError(f"{refusal} ({type(error).__name__}: {error})") from error
    if not torch.allclose(logits, whole, rtol=1e-3, atol=1e-3 * float(whole.abs().max())):
        raise ValueError(refusal)


@contextmanager
def given_states(layer: nn.Module, states: Tensor | None) -> Iterator[None]:
    """A block in which a layer is given these states."""

    def give(layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        return ((states, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": states})

    if states is None:
        yield
        return
    handle = layer.register_forward_pre_hook(give, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@dataclass
class Waiting:
    """The rows that wait for one part of a model, in the rows of its cache."""

    # `[row, place, hidden]`: committed units that wait, the draft's nodes that wait, and free places; a place behind
    # the last one is scratch
    states: Tensor
    units: Tensor  # `[row, place]`: their units
    count: Tensor  # `[row]` int64: the committed ones
    most: int = 0  # no row has more of them, on the host
    begun: int = 0  # the first node of the draft that waits; the nodes before it have been run
    nodes: int = 0  # how many of the draft's nodes wait, from `begun` on

    @classmethod
    def none(cls, states: Tensor, units: Tensor, places: int) -> "Waiting":
        """Nothing; `states [row, node, hidden]` and `units [row, node]` are of the kinds that will wait."""
        rows, _, width = states.shape
        count = torch.zeros(rows, dtype=torch.int64, device=units.device)
        return cls(states.new_zeros(rows, places + 1, width), units.new_zeros(rows, places + 1), count)

    @property
    def width(self) -> int:
        """Nodes of a pass over all that waits."""
        return self.most + self.nodes

    def begin(self) -> None:
        """Forget the nodes of a draft that another one takes the place of."""
        self.begun = self.nodes = 0

    def add(self, states: Tensor, units: Tensor, count: Tensor, most: int, nodes: int) -> None:
        """Let units wait behind those that do: `count [row]` committed ones, at most `most`, then `nodes` nodes.

        `states [row, most + nodes, hidden]` and `units [row, most + nodes]` hold nothing in the last places of rows
        that have fewer committed units. `most` is 0 if nodes of this draft wait already.
        """
        order = torch.arange(most + nodes, device=count.device)
        place = (self.count + self.nodes)[:, None] + order
        place = torch.where(order < count[:, None] + nodes, place, self.units.shape[1] - 1)
        self.states = self.states.scatter(1, place[..., None].expand_as(states), states)
        self.units = self.units.scatter(1, place, units)
        self.count, self.most, self.nodes = self.count + count, self.most + most, self.nodes + nodes

    def index(self, tree: TreeIndex) -> TreeIndex:
        """The tree of a pass over the draft's nodes up to the last one that waits, behind what waits before them."""
        if not self.most:
            return tree
        if tree.is_chain:
            return TreeIndex.chain(self.width, self.count.device)
        order = torch.arange(self.width, device=self.count.device)
        node = order - self.count[:, None]  # below 1: a committed unit, or the root, behind the unit before it
        known = tree.parent.expand(len(self.count), -1).gather(1, node.clamp(0, tree.nodes - 1))
        parent = torch.where(node > 0, known + self.count[:, None], order - 1)
        return TreeIndex.dynamic(torch.where(node < tree.nodes, parent, order - 1))

    def valid(self, valid: Tensor) -> Tensor:
        """`[row, width]` bool: the places of the pass that hold a unit, given `Draft.valid` of the cache's rows."""
        node = torch.arange(self.width, device=self.count.device) - self.count[:, None]
        drafted = valid.gather(1, (node + self.begun).clamp(0, valid.shape[1] - 1)) & (node < self.nodes)
        return (node < 0) | drafted

    def ran(self) -> None:
        """All that waited was run; the draft's next node may be run next."""
        self.begun, self.nodes, self.most = self.begun + self.nodes, 0, 0
        self.count = torch.zeros_like(self.count)

    def commit(self, path: Tensor, count: Tensor) -> None:
        """Keep the root and the first `count - 1 [row]` nodes of `path [row, depth]`, as far as they wait."""
        node = torch.nn.functional.pad(path.clamp(min=0), (1, 0)) - self.begun
        order = torch.arange(node.shape[1], device=node.device)
        kept = (order < count[:, None]) & (node >= 0) & (node < self.nodes)
        source = self.count[:, None] + node.clamp(min=0)
        source = torch.where(kept, source, self.units.shape[1] - 1)
        place = self.count[:, None] + kept.cumsum(1) - 1
        place = torch.where(kept, place, self.units.shape[1] - 1)
        states = take_nodes(self.states, source)
        self.units = self.units.scatter(1, place, self.units.gather(1, source))
        self.states = self.states.scatter(1, place[..., None].expand_as(states), states)
        self.most += min(node.shape[1], self.nodes)
        self.count = self.count + kept.sum(1)
        if self.count.device.type == "cpu":  # elsewhere, reading it would be a wait
            self.most = int(self.count.max())
        self.begin()


def last_valid(draft: Draft) -> Tensor:
    """The last valid node of every row, `[batch]` int64; -1 if there is none."""
    order = torch.arange(draft.nodes, device=draft.units.device)
    return torch.where(draft.valid, order, -1).amax(1)
