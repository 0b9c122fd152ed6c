"""Warping, from logits to distributions: guidance, logits processors, temperature; for target and draft model alike.

The processors are transformers' own, or a user's (`mmspec.core.processors` classifies them). Element-wise ones run once
for all nodes; pure functions of the history run once per history length, each node with its true prefix; all others may
keep state between calls: they run as in transformers, once per step, which allows no drafts.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, PointMass
from mmspec.core.history_processors import Prefix, Processor, with_histories
from mmspec.core.known_units import KnowsUnits
from mmspec.core.processors import drafts_forbidden_by, is_elementwise, reads_values
from mmspec.core.types import Draft, Scores, TargetOutput
from mmspec.registry.numbers import integers, numbers, required


@dataclass(frozen=True, eq=False)
class Warp:
    """The way from scores to a distribution."""

    processors: Sequence[Processor] = field(default_factory=tuple)  # transformers' logits processors, in order
    sample: bool = True  # draw (True), or take the likeliest unit (a point mass)
    guidance: float | None = None  # classifier-free guidance scale; used if the target returns unconditional logits
    pad: int = 0  # id behind the end of a shorter row, in the ids that stateful processors get
    # `[n]`, or `[batch, n]` if rows differ, int64: ids that the emitted units `0 … n - 1` must have, -1 where they are
    # free. The distribution of a forced unit has all its mass on its id.
    forced: Tensor | None = None

    @staticmethod
    def sampling(
        temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, guidance: float | None = None
    ) -> "Warp":
        """A warp from the usual numbers; temperature 0 is greedy."""
        required(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        numbers(temperature=temperature, top_p=top_p, min_p=min_p, guidance=guidance)
        integers(top_k=top_k)
        if temperature < 0 or temperature != temperature:
            raise ValueError(f"temperature must be >= 0, got {temperature}")
        if not 0 <= top_p <= 1 or not 0 <= min_p <= 1:
            raise ValueError(f"top_p and min_p must be in [0, 1], got {top_p} and {min_p}")
        if top_k < 0:
            raise ValueError(f"top_k must be >= 0, got {top_k}; 0 keeps all units")
        if guidance is not None and not 1 <= guidance < inf:
            raise ValueError(f"guidance must be a finite number >= 1, got {guidance}; 1 is no guidance")
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

    def __call__(self, output: TargetOutput, draft: Draft, prefix: Prefix, part: slice | None = None) -> Scores:
        """Distributions at the nodes that `output` covers.

        Args:
            output: Output of a pass over `draft`'s nodes, or over the slice `part` of them.
            draft: The rooted draft; a node's history is the prefix and the path to the node.
            prefix: The known units.
            part: Which nodes `output` covers; None: all. (torch 2.11 traces no default that is a slice.)
        """
        if output.distribution is not None:
            return Scores(output.distribution, output.distribution.finite(), output.hidden, output.auxiliary)
        return self._scores(output, *self.logits(output, draft, prefix, part))

    def logits(
        self, output: TargetOutput, draft: Draft, prefix: Prefix, part: slice | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits `[batch, node, vocab]` float32 of which distributions are made, and the same before processors."""
        nodes = slice(None) if part is None else part
        logits = unprocessed = self._guided(output)
        if self.processors and not torch.compiler.is_compiling() and _locked(logits):
            logits = logits.clone()  # a processor may write in place, as it may in transformers
        stateful = drafts_forbidden_by(self.processors)
        if stateful:
            if draft.nodes > 1:
                raise ValueError(f"{', '.join(stateful)} may keep state between calls: decode without a drafter")
            logits = self._stateful(logits, prefix)
        else:
            for processor in self.processors:
                if is_elementwise(processor):
                    logits = _at_once(processor, logits, prefix.history)
                else:
                    logits = with_histories(processor, logits, draft, prefix, nodes)
        if self.forced is not None:
            logits = _only(self.forced_at(prefix.emitted[:, None] + draft.index.depth[:, nodes]), logits)
        return logits, unprocessed

    def _guided(self, output: TargetOutput) -> Tensor:
        """Logits after guidance, float32.

        Processors such as penalties read the level of scores, which transformers' guidance takes from log-probabilities
        of both halves. A softmax alone does not show it.
        """
        assert output.logits is not None
        logits = output.logits.float()
        if output.null is None or self.guidance is None:
            return logits
        null = output.null.float()
        if self.processors:
            logits, null = logits.log_softmax(-1), null.log_softmax(-1)
        return null + self.guidance * (logits - null)

    def reads_values(self, output: TargetOutput) -> bool:
        """True if logits of some units are made of these units' scores alone, whichever they are."""
        return self.forced is None and output.null is None and all(map(reads_values, self.processors))

    def _scores(self, output: TargetOutput, logits: Tensor, unprocessed: Tensor) -> Scores:
        """Distributions of processed logits."""
        if self.sample:
            distribution = Categorical.of_logits(logits)
            finite = logits.amax(-1).abs() < torch.inf  # as `distribution.finite()`, which would need the softmax
            return Scores(distribution, finite, output.hidden, output.auxiliary, logits, unprocessed)
        best = logits.max(-1)
        points, finite = PointMass(best.indices), best.values.isfinite()
        return Scores(points, finite, output.hidden, output.auxiliary, logits, unprocessed)

    def forced_at(self, position: Tensor) -> Tensor:
        """Ids that the emitted units of index `position [batch, n]` must have, -1 where they are free."""
        assert self.forced is not None
        table = self.forced.to(position.device).expand(len(position), -1)
        forced = table.gather(1, position.clamp(max=table.shape[1] - 1))
        return torch.where(position < table.shape[1], forced, -1)

    @property
    def key(self) -> Hashable:
        """A key that two warps share which do the same. Processors of one class with equal settings are the same."""
        settings = tuple(
            (type(p), *((name, _frozen(value)) for name, value in sorted(vars(p).items()))) for p in self.processors
        )
        return settings, self.sample, self.guidance, None if self.forced is None else _frozen(self.forced)

    def _stateful(self, logits: Tensor, prefix: Prefix) -> Tensor:
        """Run all processors as transformers does: in order, once for all rows, with all ids `[batch, length]`."""
        length = max(prefix.known)
        known = torch.tensor(prefix.known, device=logits.device)[:, None]
        ids = prefix.history[:, :length]
        ids = ids.masked_fill(torch.arange(length, device=ids.device) >= known, self.pad)
        scores = logits[:, 0]
        for processor in self.processors:
            scores = processor(ids, scores)
        return scores[:, None]


def _locked(values: Tensor) -> bool:
    """True if torch refuses to write into a tensor here."""
    return values.is_inference() and not torch.is_inference_mode_enabled()


def _only(units: Tensor, logits: Tensor) -> Tensor:
    """Logits `[batch, node, vocab]` with all mass on `units [batch, node]` where these are not -1."""
    one = torch.full_like(logits, -torch.inf).scatter_(-1, units.clamp(min=0)[..., None], 0.0)
    return torch.where((units < 0)[..., None], logits, one)


def _at_once(processor: Processor, logits: Tensor, history: Tensor) -> Tensor:
    """Run an element-wise processor on all nodes; it reads no ids, but its shape checks want one column of them."""
    flat = logits.flatten(0, 1)
    return processor(history[:1, :1].expand(len(flat), 1), flat).reshape(logits.shape)


def _frozen(value: Any) -> Hashable:
    """A processor's setting as a key; objects that are not plain data are told apart by who they are."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), tuple(value.flatten().tolist())
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, KnowsUnits):  # a new one in every call
        return _frozen([value.allowed, value.forced])
    plain = isinstance(value, int | float | str | None | torch.device | torch.dtype)
    return value if plain else id(value)
