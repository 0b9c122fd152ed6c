"""The data of a round: draft → target output → scores → verdict → step.

All batched, padded and on the device. `*unit` is the shape of one unit: empty for tokens and codes, `(dim,)` for
continuous tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import Distribution, finite_nodes, take_nodes, where_nodes
from mmspec.core.tree import TreeIndex


@dataclass(frozen=True)
class Draft:
    """A tree of units. Drafters give the drafted nodes only; the decoder prepends the root (`rooted`).

    Attributes:
        units: `[batch, node, *unit]`.
        index: Parents, depths and ancestors. It counts the root as node 0, also before `rooted`.
        valid: `[batch, node]` bool; False for padding, for refused nodes and for all their descendants. In a rooted
            draft, valid nodes that have a distribution have a valid one (`distribution.finite()`).
        distribution: What the drafted units were really drawn from, `[batch, node - 1]`: distribution `i - 1` belongs
            to node `i`. If a draw is more than its unit, it must have the draws (`distribution.with_draws(draws)`).
            None if every unit is a point mass (argmax, lookup, copy).
        score: `[batch, node - 1]` log probability of reaching a node, known *before* its own draw; or None.
    """

    units: Tensor
    index: TreeIndex
    valid: Tensor
    distribution: Distribution | None = None
    score: Tensor | None = None

    @staticmethod
    def chain(
        units: Tensor,
        distribution: Distribution | None = None,
        valid: Tensor | None = None,
        score: Tensor | None = None,
    ) -> "Draft":
        """A chain of drafted units `[batch, k, *unit]`; `valid` and `score` are `[batch, k]`."""
        index = TreeIndex.chain(units.shape[1] + 1, units.device)
        return Draft(units, index, _valid(units, valid), distribution, score)

    @staticmethod
    def tree(
        units: Tensor,
        parents: Sequence[int] | Tensor,
        distribution: Distribution | None = None,
        valid: Tensor | None = None,
        score: Tensor | None = None,
        deepest: int | None = None,
    ) -> "Draft":
        """A tree of drafted units `[batch, k, *unit]`.

        Args:
            units: The drafted units.
            parents: Index of each unit's parent among the drafted units, -1 for children of the root: a sequence for
                all rows, or `[batch, k]`.
            distribution: As in the class.
            valid: `[batch, k]` bool.
            score: `[batch, k]`.
            deepest: Most levels of the tree, if parents are a tensor; less noise is then computed.
        """
        if isinstance(parents, Tensor):
            root = torch.full_like(parents[:, :1], -1)
            index = TreeIndex.dynamic(torch.cat([root, parents + 1], 1).long(), deepest)
        else:
            index = TreeIndex.static([-1, *(p + 1 for p in parents)], units.device)
        return Draft(units, index, _valid(units, valid), distribution, score)

    @staticmethod
    def empty(root: Tensor) -> "Draft":
        """A draft of no units, not rooted: plain decoding."""
        return Draft.chain(root[:, None][:, :0])

    @staticmethod
    def alone(root: Tensor) -> "Draft":
        """The root `[batch, *unit]` alone, rooted: plain decoding."""
        return Draft(root[:, None], TreeIndex.chain(1, root.device), root.new_ones(len(root), 1, dtype=torch.bool))

    def rooted(self, root: Tensor, room: Tensor) -> "Draft":
        """Prepend the root `[batch, *unit]`; refuse nodes deeper than `room [batch]` (units still wanted, less one).

        Also refuses units whose distribution is not valid (NaN, or no mass, if all units are forbidden): no rule has a
        ratio or a residual for it. Latents that are not finite are refused, and never reach the target.
        """
        if not self.units.shape[1]:
            return Draft.alone(root)
        drafted = self if self.distribution is None else replace(self, valid=self.valid & self.distribution.finite())
        drafted = drafted.apart(root)
        valid = torch.cat([torch.ones_like(room[:, None], dtype=torch.bool), drafted.valid], 1)
        valid &= self.index.depth <= room[:, None].clamp(min=0)
        valid = ~(self.index.ancestor & ~valid[:, None]).any(-1)
        return replace(self, units=torch.cat([root[:, None], drafted.units], 1), valid=valid)

    def apart(self, root: Tensor) -> "Draft":
        """Refuse latents that are not finite; the root takes their place. Units of other kinds are left."""
        if not self.units.is_floating_point():
            return self
        # Attention gives masked nodes the weight 0, and 0 times NaN is NaN.
        valid = self.valid & finite_nodes(self.units)
        return replace(self, units=where_nodes(valid, self.units, root[:, None].expand_as(self.units)), valid=valid)

    def within(self, room: Tensor) -> "Draft":
        """Refuse nodes of a draft that is not rooted which are deeper than `room [batch]`."""
        return replace(self, valid=self.valid & (self.index.depth[:, 1:] <= room[:, None]))

    def shallower(self, depth: int) -> "Draft":
        """Refuse nodes of a rooted draft at `depth` or deeper."""
        return replace(self, valid=self.valid & (self.index.depth < depth))

    def compact(self) -> "Draft":
        """A chain, not rooted, without the tail that is invalid in all rows; unchanged off the CPU (a host sync)."""
        if self.units.device.type != "cpu" or not self.index.is_chain or not self.units.shape[1]:
            return self
        k = int(self.valid.cumprod(1).any(0).sum())
        distribution = None if self.distribution is None else self.distribution.take(torch.arange(k)[None])
        score = None if self.score is None else self.score[:, :k]
        return Draft.chain(self.units[:, :k], distribution, self.valid[:, :k], score)

    @property
    def drafted(self) -> Tensor:
        """Units of a rooted draft without the root: `[batch, node - 1, *unit]`."""
        return self.units[:, 1:]

    @property
    def nodes(self) -> int:
        """Nodes of a rooted draft."""
        return self.units.shape[1]


def _valid(units: Tensor, valid: Tensor | None) -> Tensor:
    return torch.ones(units.shape[:2], dtype=torch.bool, device=units.device) if valid is None else valid


@dataclass(frozen=True)
class Part:
    """Some of the units: those that a head scores."""

    ids: Tensor  # `[size]` int64, ascending
    vocab: int  # the number of all units

    def whole(self, logits: Tensor) -> Tensor:
        """Logits `[…, size]` as logits of all units: -inf where there are none."""
        return logits.new_full((*logits.shape[:-1], self.vocab), -torch.inf).index_copy_(-1, self.ids, logits)


@dataclass(frozen=True)
class TargetOutput:
    """The output of a target's pass, before guidance and warping.

    Attributes:
        logits: `[batch, node, vocab]` of the next unit at every node; None if `distribution` is given.
        null: Logits of the unconditional rows, of the same shape, for classifier-free guidance; or None.
        distribution: The distribution itself, if it does not come from logits; else None.
        hidden: `[batch, node, width]`, if the drafter or the rule asked for hidden states.
        auxiliary: What the pass computes beside the scores at every node, `[batch, node, …]`; or None.
        part: The units that logits are of, from a draft model; None: all.
    """

    logits: Tensor | None = None
    null: Tensor | None = None
    distribution: Distribution | None = None
    hidden: Tensor | None = None
    auxiliary: Tensor | None = None
    part: Part | None = None

    def whole(self) -> "TargetOutput":
        """The same with logits of all units."""
        if self.part is None:
            return self
        logits, null = (None if each is None else self.part.whole(each) for each in (self.logits, self.null))
        return replace(self, logits=logits, null=null, part=None)

    def take(self, nodes: Tensor) -> "TargetOutput":
        """The output at `nodes [batch, m]` (or `[1, m]`)."""

        def at(values: Tensor | None) -> Tensor | None:
            return None if values is None else take_nodes(values, nodes)

        distribution = None if self.distribution is None else self.distribution.take(nodes)
        taken = at(self.logits), at(self.null), distribution, at(self.hidden), at(self.auxiliary)
        return TargetOutput(*taken, self.part)


@dataclass(frozen=True)
class Prefill:
    """The result of a target's prefill.

    Attributes:
        cache: The target's cache of this call; only the target reads it.
        output: The output for the first new unit, one node: `[batch, 1, …]`.
        prompt: The prompt as units, padded on the left: `[batch, length, *unit]`; `length` may be 0.
        pads: `[batch]` int64: number of padding units of each row.
        hidden: `[batch, column, width]`, if hidden states were asked for: the last column is that of the prompt's last
            unit. Units of an earlier turn have no column; the columns of padding are not to be read.
        prompts: The number of prompts that were read, negative ones included, where several rows have the same; None:
            every row's own.
        keeps_shape: Whether one shape is a promise to the bit: what a unit's scores are depends on the shape of passes
            alone.
        keeps_trees: Whether the same holds of a unit that came in a tree, between other slots than those of its path.
        rounding: What a user should know where a unit's scores depend on its pass by more than near-ties; "" elsewhere.
        products: Who computes the linear layers of passes, in words; "" for torch.
    """

    cache: Any
    output: TargetOutput
    prompt: Tensor
    pads: Tensor
    hidden: Tensor | None = None
    prompts: int | None = None
    keeps_shape: bool = True
    keeps_trees: bool = True
    rounding: str = ""
    products: str = ""


@dataclass(frozen=True)
class Scores:
    """The target's distribution at the root and after every node.

    Attributes:
        distribution: `[batch, node]`: distribution `i` is of the unit that follows node `i`.
        finite: `[batch, node]` bool; False where logits were NaN or all -inf.
        hidden: As in `TargetOutput`; likewise `auxiliary`.
        logits: `[batch, node, vocab]` float32, after guidance and processors; None if the target gave a distribution.
        unprocessed: `[batch, node, vocab]` float32, after guidance, before the processors; None likewise.
    """

    distribution: Distribution
    finite: Tensor
    hidden: Tensor | None = None
    auxiliary: Tensor | None = None
    logits: Tensor | None = None
    unprocessed: Tensor | None = None


@dataclass(frozen=True)
class Verdict:
    """The decision of a rule.

    Attributes:
        path: `[batch, depth]` int64: accepted node ids after the root, -1 padded.
        length: `[batch]` int64: number of accepted nodes, the root not counted.
        unit: `[batch, *unit]`: one more unit (residual or bonus).
        drawn: `[batch, node, *draw]`: what was drawn at every node; `distribution.units(drawn)` are its units.
        tv: `[batch, node]`, of lossy rules that measure: total variation between the distribution of the unit that is
            emitted at a node, given the units before it, and the target's. With `excess_acceptance`, or None.
        excess_acceptance: `[batch, node]`: probability of accepting the drafted child, less an exact rule's; 0 where
            nothing was drafted.
    """

    path: Tensor
    length: Tensor
    unit: Tensor
    drawn: Tensor
    tv: Tensor | None = None
    excess_acceptance: Tensor | None = None

    def emitted(self, count: Tensor) -> Tensor:
        """Nodes at which a unit was emitted, given the units emitted per row, `count [batch]`: `[batch, node]` bool."""
        rows, nodes = self.drawn.shape[:2]
        path = torch.nn.functional.pad(self.path, (1, 0))  # the root first
        slot = torch.arange(path.shape[1], device=path.device)
        none = torch.zeros(rows, nodes + 1, dtype=torch.bool, device=path.device)
        return none.scatter(1, torch.where(slot < count[:, None], path, nodes), True)[:, :-1]


@dataclass(frozen=True)
class Step:
    """A settled round.

    Attributes:
        draft: The rooted draft.
        scores: The target's distributions.
        verdict: The rule's decision.
        count: `[batch]` int64: units emitted, after end-of-sequence and length truncation; 0 in finished rows.
    """

    draft: Draft
    scores: Scores
    verdict: Verdict
    count: Tensor
