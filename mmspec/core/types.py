"""What one round passes along: draft → output → scores → verdict → step.

All batched, padded and on the device. `unit` stands for the shape of one unit: empty for tokens and codes, `(dim,)` for
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
    """A tree of units. Drafters make it of drafted nodes only; the decoder prepends the root (`rooted`).

    Attributes:
        units: `[batch, node, *unit]`.
        index: Who hangs on whom. Before `rooted`, it already counts the root as node 0.
        valid: `[batch, node]` bool; padding and refused nodes are False, and so is all that hangs on them. Once rooted,
            valid nodes with a distribution were drawn from one: `distribution.finite()` holds.
        distribution: What the drafted units were really drawn from, `[batch, node - 1]`: distribution `i - 1` belongs
            to node `i`. Where a draw is more than its unit, the distribution has the draws too
            (`distribution.with_draws(draws)`). None where every unit is a point mass (argmax, lookup, copy).
        score: `[batch, node - 1]` log-survival known *before* a node's own draw, for policies; or None.
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
        return Draft._of(units, TreeIndex.chain(units.shape[1] + 1, units.device), distribution, valid, score)

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
            parents: Index of each unit's parent among the drafted units, -1 for children of the root: a sequence that
                all rows share, or `[batch, k]`.
            distribution: As in the class.
            valid: `[batch, k]` bool.
            score: `[batch, k]`.
            deepest: Levels of the tree, where every row has parents of its own: less noise is made for it.
        """
        if isinstance(parents, Tensor):
            root = torch.full_like(parents[:, :1], -1)
            index = TreeIndex.dynamic(torch.cat([root, parents + 1], 1).long(), deepest)
        else:
            index = TreeIndex.static([-1, *(p + 1 for p in parents)], units.device)
        return Draft._of(units, index, distribution, valid, score)

    @staticmethod
    def empty(root: Tensor) -> "Draft":
        """No draft: after `rooted`, one node, which is plain decoding."""
        return Draft.chain(root[:, None][:, :0])

    @staticmethod
    def alone(root: Tensor) -> "Draft":
        """The root `[batch, *unit]` and no draft, rooted: plain decoding."""
        return Draft(root[:, None], TreeIndex.chain(1, root.device), root.new_ones(len(root), 1, dtype=torch.bool))

    @staticmethod
    def _of(
        units: Tensor, index: TreeIndex, distribution: Distribution | None, valid: Tensor | None, score: Tensor | None
    ) -> "Draft":
        valid = torch.ones(units.shape[:2], dtype=torch.bool, device=units.device) if valid is None else valid
        return Draft(units, index, valid, distribution, score)

    def rooted(self, root: Tensor, room: Tensor) -> "Draft":
        """Prepend the root `[batch, *unit]`; refuse nodes deeper than `room [batch]` (units still wanted, less one).

        Refuses units whose distribution is none, too (NaN, or no mass: all units of a small vocabulary may be
        forbidden): nothing can have been drawn from it, and no rule has a ratio or a residual for it. Latents that are
        not finite are refused, and never reach the target.
        """
        if not self.units.shape[1]:
            return Draft.alone(root)
        units, drafted = self.units, self.valid
        if self.distribution is not None:
            drafted = drafted & self.distribution.finite()
        if units.is_floating_point():
            # Attention gives what a node must not see the weight 0, and 0 times NaN is NaN.
            drafted = drafted & finite_nodes(units)
            units = where_nodes(drafted, units, root[:, None].expand_as(units))
        valid = torch.cat([torch.ones_like(room[:, None], dtype=torch.bool), drafted], 1)
        valid &= self.index.depth <= room[:, None].clamp(min=0)
        valid = ~(self.index.ancestor & ~valid[:, None]).any(-1)
        return replace(self, units=torch.cat([root[:, None], units], 1), valid=valid)

    def shallower(self, depth: int) -> "Draft":
        """Refuse nodes of a rooted draft at `depth` or deeper."""
        return replace(self, valid=self.valid & (self.index.depth < depth))

    def narrow(self, k: int) -> "Draft":
        """The first `k` drafted nodes of a chain that is not rooted yet."""
        assert self.index.is_chain
        distribution = (
            None
            if self.distribution is None
            else self.distribution.take(torch.arange(k, device=self.units.device)[None])
        )
        score = None if self.score is None else self.score[:, :k]
        return Draft.chain(self.units[:, :k], distribution, self.valid[:, :k], score)

    def compact(self) -> "Draft":
        """Without the tail of a chain that no row wants, where reading the device is free; elsewhere shapes stay."""
        if self.units.device.type != "cpu" or not self.index.is_chain or not self.units.shape[1]:
            return self
        return self.narrow(int(self.valid.cumprod(1).any(0).sum()))

    @property
    def drafted(self) -> Tensor:
        """Units of a rooted draft without the root: `[batch, node - 1, *unit]`."""
        return self.units[:, 1:]

    @property
    def nodes(self) -> int:
        """Nodes of a rooted draft."""
        return self.units.shape[1]


@dataclass(frozen=True)
class TargetOutput:
    """What a target's pass yields, before the core warps it.

    Attributes:
        logits: `[batch, node, vocab]` of the next unit at every node; or None where `distribution` is given.
        null: The logits of the unconditional rows, for guidance; or None.
        distribution: The distribution itself, where it does not come from logits.
        hidden: `[batch, node, width]`, where the drafter or the rule asked for it.
        auxiliary: What a pass makes beside scores, at every node (a world model's frames): `[batch, node, …]`; or None.
    """

    logits: Tensor | None = None
    null: Tensor | None = None
    distribution: Distribution | None = None
    hidden: Tensor | None = None
    auxiliary: Tensor | None = None

    def take(self, nodes: Tensor) -> "TargetOutput":
        """The pass at `nodes [batch, m]` only."""

        def at(values: Tensor | None) -> Tensor | None:
            return None if values is None else take_nodes(values, nodes)

        distribution = None if self.distribution is None else self.distribution.take(nodes)
        return TargetOutput(at(self.logits), at(self.null), distribution, at(self.hidden), at(self.auxiliary))


@dataclass(frozen=True)
class Started:
    """A target's answer to a prompt.

    Attributes:
        cache: The call's memory; only the target looks into it.
        output: Scores of the first new unit, one node: `[batch, 1, …]`.
        prompt: `[batch, given, *unit]`: the prompt as units, padded on the left; `given` may be 0.
        pads: `[batch]` int64: padding of each row.
    """

    cache: Any
    output: TargetOutput
    prompt: Tensor
    pads: Tensor


@dataclass(frozen=True)
class Scores:
    """The target's distribution at the root and after every node.

    Attributes:
        distribution: `[batch, node]`: distribution `i` is that of the unit that follows node `i`.
        finite: `[batch, node]` bool; False where logits were NaN or all -inf.
        hidden: As in `TargetOutput`.
        auxiliary: As in `TargetOutput`.
        logits: `[batch, node, vocab]` float32: after guidance and processors, the distribution's logits; None where
            the target gave a distribution.
        unprocessed: `[batch, node, vocab]` float32: after guidance, before the processors; None likewise.
    """

    distribution: Distribution
    finite: Tensor
    hidden: Tensor | None = None
    auxiliary: Tensor | None = None
    logits: Tensor | None = None
    unprocessed: Tensor | None = None


@dataclass(frozen=True)
class Verdict:
    """What a rule decided.

    Attributes:
        path: `[batch, depth]` int64: accepted node ids after the root, -1 padded.
        length: `[batch]` int64: accepted nodes, root not counted.
        unit: `[batch, *unit]`: one more unit (residual or bonus).
        drawn: `[batch, node, *draw]`: what was drawn at every node; the distribution's `units` says what of it is a
            unit.
        tv: `[batch, node]`, of lossy rules that measure: total variation between the distribution of the unit that is
            emitted at a node, given all before it, and the target's distribution there. Read where a unit was emitted.
            With `excess_acceptance`, or None.
        excess_acceptance: `[batch, node]`: probability of keeping the drafted child, less an exact rule's; 0 where
            there is none.
    """

    path: Tensor
    length: Tensor
    unit: Tensor
    drawn: Tensor
    tv: Tensor | None = None
    excess_acceptance: Tensor | None = None

    def emitted(self, count: Tensor) -> Tensor:
        """Nodes at which a unit was emitted, where `count [batch]` were: `[batch, node]` bool."""
        rows, nodes = self.drawn.shape[:2]
        path = torch.nn.functional.pad(self.path, (1, 0))  # the root first
        slot = torch.arange(path.shape[1], device=path.device)
        spare = torch.zeros(rows, nodes + 1, dtype=torch.bool, device=path.device)
        return spare.scatter(1, torch.where(slot < count[:, None], path, nodes), True)[:, :-1]


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
