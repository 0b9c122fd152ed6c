"""Toy state-space model: two layers of a diagonal linear recurrence, read out as a distribution over units.

A tree is scored in one pass without a state per node: a node's state is a^(depth + 1) S plus the inputs of its
ancestors, each decayed by its distance. A commit moves the committed state along the accepted path, from the inputs
that the pass kept: no stored states, no second pass.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.testing.toys.cache import rooted_path


@dataclass
class RecurrenceCache:
    """The state of a call."""

    state: Tensor  # `[batch, layer, width]`, after all committed units
    inputs: Tensor  # `[batch, node, layer, width]`: the input of each node of the last pass to each layer


class RecurrenceTarget:
    """h' = a · h + B u, layer upon layer (tanh between them), logits = C h.

    Args:
        decay: `[layer, width]`: a, in (0, 1).
        embedding: `[vocab, width]`: B u of the first layer, by unit.
        mixing: `[width, width]`: B of the second layer, from the first layer's states to the second's inputs.
        readout: `[vocab, width]`: C.
    """

    offers = frozenset({"discrete", "tree", "grow"})

    def __init__(self, decay: Tensor, embedding: Tensor, mixing: Tensor, readout: Tensor) -> None:
        self.decay, self.embedding, self.mixing, self.readout = decay, embedding, mixing, readout
        self.vocab: int | None = len(embedding)

    @classmethod
    def random(cls, vocab: int, seed: int, width: int = 6, sharpness: float = 1.5) -> "RecurrenceTarget":
        """Gaussian weights, decays between 0.3 and 0.95."""
        generator = torch.Generator().manual_seed(seed)
        decay = 0.3 + 0.65 * torch.rand(2, width, generator=generator)
        embedding = torch.randn(vocab, width, generator=generator)
        mixing = torch.randn(width, width, generator=generator)
        return cls(decay, embedding, mixing, sharpness * torch.randn(vocab, width, generator=generator) / width**0.5)

    def near(self, seed: int, noise: float = 0.3) -> "RecurrenceTarget":
        """A worse model of the same units: noise on embedding and readout; at 2 little is left of this model."""
        other = RecurrenceTarget.random(len(self.embedding), seed, self.embedding.shape[1])
        embedding, readout = (
            a + noise * b for a, b in ((self.embedding, other.embedding), (self.readout, other.readout))
        )
        return RecurrenceTarget(self.decay, embedding, self.mixing, readout)

    def start(self, inputs: Tensor, limit: int, width: int) -> Prefill:
        """`inputs [batch, prompt]` int64, -1 as padding on the left."""
        pads = (inputs < 0).sum(1)
        cache = RecurrenceCache(
            torch.zeros(len(inputs), *self.decay.shape), self.decay[None, :0].expand(len(inputs), -1, -1, -1)
        )
        index = TreeIndex.chain(inputs.shape[1])
        states = self._pass(cache, inputs, index)
        cache.state = states[:, -1]
        return Prefill(cache, TargetOutput(logits=states[:, -1:, 1] @ self.readout.T), inputs.clamp(min=0), pads)

    def verify(self, cache: RecurrenceCache, draft: Draft, first: int = 0) -> TargetOutput:
        states = self._pass(cache, draft.units, draft.index)
        return TargetOutput(logits=states[:, first:, 1] @ self.readout.T)

    def commit(self, cache: RecurrenceCache, path: Tensor, count: Tensor) -> None:
        nodes = rooted_path(path)
        inputs = take_nodes(cache.inputs, nodes)  # [batch, step, layer, width]
        ago = count[:, None] - 1 - torch.arange(nodes.shape[1])  # steps until the last kept node
        weights = self._power(ago.clamp(min=0)) * (ago >= 0)[..., None, None]
        cache.state = self._power(count) * cache.state + (weights * inputs).sum(1)

    def truncate(self, cache: RecurrenceCache, length: Tensor) -> None:
        raise NotImplementedError("a recurrence keeps its last state only; it cannot go back")

    def _pass(self, cache: RecurrenceCache, units: Tensor, index: TreeIndex) -> Tensor:
        """States of all nodes in both layers, `[batch, node, layer, width]`; leaves the inputs in the cache."""
        distance = (index.depth[:, :, None] - index.depth[:, None]).clamp(min=0)
        reach = self._power(distance) * index.ancestor[..., None, None]  # [tree, node, ancestor, layer, width]
        begun = self._power(index.depth + 1) * cache.state[:, None]
        # Padding feeds nothing into a state that is still zero.
        first = self.embedding[units.clamp(min=0)] * (units >= 0)[..., None]
        below = begun[:, :, 0] + torch.einsum("bnaw,baw->bnw", reach[..., 0, :], first)
        second = torch.tanh(below) @ self.mixing.T
        above = begun[:, :, 1] + torch.einsum("bnaw,baw->bnw", reach[..., 1, :], second)
        cache.inputs = torch.stack([first, second], 2)
        return torch.stack([below, above], 2)

    def _power(self, steps: Tensor) -> Tensor:
        """decay^steps: `[*steps, layer, width]`."""
        return self.decay ** steps[..., None, None]
