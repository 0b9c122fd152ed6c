"""From output scores to distributions: guidance, logits processors, temperature. The same warp serves target and
drafter.

The processors are transformers' own, or a user's (`mmspec.core.processors` tells them apart). Element-wise ones run
once for all nodes; pure functions of a history run once per history length, each node with its true prefix; all others
may keep state between calls: they run as in transformers, once a step, which allows no drafts.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, PointMass
from mmspec.core.processors import drafts_forbidden_by, is_elementwise
from mmspec.core.types import Draft, Scores, TargetOutput
from mmspec.registry.numbers import integers, numbers


class Processor(Protocol):
    """transformers' `LogitsProcessor`."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores `[rows, vocab]` after `input_ids [rows, length]`."""
        ...


@dataclass(frozen=True)
class Prefix:
    """Where a node's history comes from.

    Attributes:
        history: `[batch, capacity]` ids.
        known: How many of them each row knows, the root included, on the host.
        emitted: `[batch]` int64: how many of them are no prompt, on the device.
    """

    history: Tensor
    known: Sequence[int]
    emitted: Tensor


@dataclass(frozen=True)
class Warp:
    """How scores become a distribution.

    Attributes:
        processors: transformers' logits processors, in order.
        sample: Draw (True), or take the likeliest unit (a point mass).
        guidance: Classifier-free guidance scale; used where a target yields unconditional logits.
        pad: What stands behind the end of a row in the ids that processors of no drafts are shown.
        forced: `[n]`, or `[batch, n]` where rows differ, int64: the ids that emitted units `0 … n - 1` must have, -1
            where they are free (the ends of a picture's rows, say). Such a unit's distribution has all its mass there.
    """

    processors: Sequence[Processor] = field(default_factory=tuple)
    sample: bool = True
    guidance: float | None = None
    pad: int = 0
    forced: Tensor | None = None

    @staticmethod
    def sampling(
        temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, guidance: float | None = None
    ) -> "Warp":
        """A warp from the usual numbers; temperature 0 is greedy.

        Raises:
            ValueError: A number is out of its range.
        """
        numbers(temperature=temperature, top_p=top_p, min_p=min_p, guidance=guidance)
        integers(top_k=top_k)
        if temperature < 0 or temperature != temperature:
            raise ValueError(f"temperature must be >= 0, got {temperature}")
        if not 0 <= top_p <= 1 or not 0 <= min_p <= 1:
            raise ValueError(f"top_p and min_p must be in [0, 1], got {top_p} and {min_p}")
        if top_k < 0:
            raise ValueError(f"top_k must be >= 0, got {top_k}; 0 keeps all units")
        if guidance is not None and not guidance >= 1:
            raise ValueError(f"guidance must be a number >= 1, got {guidance}; 1 is no guidance")
        from transformers import (
            MinPLogitsWarper,
            TemperatureLogitsWarper,
            TopKLogitsWarper,
            TopPLogitsWarper,
        )

        chosen: list[Processor] = []
        if temperature not in (0, 1):
            chosen.append(TemperatureLogitsWarper(temperature))
        if top_k:
            chosen.append(TopKLogitsWarper(top_k))
        if top_p < 1:
            chosen.append(TopPLogitsWarper(top_p))
        if min_p > 0:
            chosen.append(MinPLogitsWarper(min_p))
        return Warp(chosen, sample=temperature > 0, guidance=guidance)

    def __call__(self, output: TargetOutput, draft: Draft, prefix: Prefix, nodes: slice = slice(None)) -> Scores:
        """Distributions of the nodes that `output` covers.

        Args:
            output: The pass, over `draft`'s nodes or over the slice `nodes` of them.
            draft: Rooted; paths to its nodes complete a prefix.
            prefix: Known units.
            nodes: Which nodes `output` covers.
        """
        if output.distribution is not None:
            return Scores(output.distribution, output.distribution.finite(), output.hidden, output.auxiliary)
        assert output.logits is not None
        logits = output.logits.float()
        if output.null is not None and self.guidance is not None:
            null = output.null.float()
            logits = null + self.guidance * (logits - null)
        unprocessed = logits
        if self.processors and logits.is_inference() and not torch.is_inference_mode_enabled():
            logits = logits.clone()  # a processor may write in place, as it may in transformers
        stateful = drafts_forbidden_by(self.processors)
        if stateful:
            if draft.nodes > 1:
                raise ValueError(f"{', '.join(stateful)} may keep state between calls: decode without a drafter")
            logits = self._step(logits, prefix)
        else:
            for processor in self.processors:
                if is_elementwise(processor):
                    logits = _at_once(processor, logits, prefix)
                else:
                    logits = _by_history(processor, logits, draft, prefix, nodes)
        if self.forced is not None:
            logits = _only(self.forced_at(prefix.emitted[:, None] + draft.index.depth[:, nodes]), logits)
        if self.sample:
            distribution = Categorical.of_logits(logits)
            return Scores(distribution, distribution.finite(), output.hidden, output.auxiliary, logits, unprocessed)
        best = logits.max(-1)
        return Scores(
            PointMass(best.indices), best.values.isfinite(), output.hidden, output.auxiliary, logits, unprocessed
        )

    def forced_at(self, place: Tensor) -> Tensor:
        """Ids that the emitted units of index `place [batch, n]` must have, -1 where they are free: the same shape."""
        assert self.forced is not None
        table = self.forced.to(place.device).expand(len(place), -1)
        listed = table.gather(1, place.clamp(max=table.shape[1] - 1))
        return torch.where(place < table.shape[1], listed, -1)

    def _step(self, logits: Tensor, prefix: Prefix) -> Tensor:
        """All processors as transformers runs them: in order, once for all rows, with all ids `[batch, length]`."""
        length = max(prefix.known)
        known = torch.tensor(prefix.known, device=logits.device)[:, None]
        ids = prefix.history[:, :length]
        ids = ids.masked_fill(torch.arange(length, device=ids.device) >= known, self.pad)
        scores = logits[:, 0]
        for processor in self.processors:
            scores = processor(ids, scores)
        return scores[:, None]


def _only(units: Tensor, logits: Tensor) -> Tensor:
    """Logits `[batch, node, vocab]` with all mass on `units [batch, node]`, where these are not -1."""
    one = torch.full_like(logits, -torch.inf).scatter_(-1, units.clamp(min=0)[..., None], 0.0)
    return torch.where((units < 0)[..., None], logits, one)


def _at_once(processor: Processor, logits: Tensor, prefix: Prefix) -> Tensor:
    """Run an element-wise processor on all nodes; ids are not read, and one column of them keeps shape checks quiet."""
    flat = logits.flatten(0, 1)
    return processor(prefix.history[:1, :1].expand(len(flat), 1), flat).reshape(logits.shape)


def _by_history(processor: Processor, logits: Tensor, draft: Draft, prefix: Prefix, nodes: slice) -> Tensor:
    """Run a processor on every node with its own prefix: one call per length of history and sibling of that length.

    A processor may know rows by their place in the batch (how much padding to ignore, what a row may say). So every
    call has all rows, each at its place; what a row without a node of that length gets back is dropped.
    """
    rows = len(logits)
    listed = range(draft.nodes)[nodes]
    depths = draft.index.depth.expand(rows, -1).tolist()
    calls: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for b in range(rows):
        siblings: Counter[int] = Counter()
        for i, node in enumerate(listed):
            length = prefix.known[b] + depths[b][node]
            calls[length, siblings[length]][b] = i
            siblings[length] += 1
    result = torch.empty_like(logits)
    place = torch.arange(rows, device=logits.device)
    for (length, _), members in calls.items():
        at = [members.get(b, 0) for b in range(rows)]
        ids = torch.stack([_ids(draft, prefix, b, listed[i], length) for b, i in enumerate(at)])
        made = processor(ids, logits[place, torch.tensor(at, device=logits.device)])
        mine, theirs = (torch.tensor(m, device=logits.device) for m in (list(members), list(members.values())))
        result[mine, theirs] = made[mine]
    return result


def _ids(draft: Draft, prefix: Prefix, row: int, node: int, length: int) -> Tensor:
    """Known units of a row, then the path from its root (exclusive) to the node; cut or filled up to `length`."""
    tree_row = row if len(draft.index.ancestor) > 1 else 0
    above = draft.index.ancestor[tree_row, node].clone()
    above[0] = False
    ids = torch.cat([prefix.history[row, : prefix.known[row]], draft.units[row][above]])[:length]
    return torch.nn.functional.pad(ids, (0, length - len(ids)))
