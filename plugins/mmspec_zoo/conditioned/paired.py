"""Two targets of the same units as one: both read what is emitted, behind prompts of their own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.capabilities import Bounded, LengthAware
from mmspec.core.protocols import Target
from mmspec.core.types import Draft, Prefill, TargetOutput


@dataclass
class PairedCache:
    """The caches of both, of one call."""

    own: Any
    second: Any


class PairedTarget(ABC):
    """A target beside a second one; `prompt` makes what the second one reads, from the prompt's units `[batch, length]`
    and their padding `[batch]`.
    """

    def __init__(self, target: Target, second: Target, prompt: Callable[[Tensor, Tensor], Any]) -> None:
        self.target, self.second, self.prompt = target, second, prompt
        self.offers = target.offers & (second.offers | {"text"}) - {"hidden", "live", "truncate"}
        self.vocab: int | None = target.vocab
        self.context: int | None = target.context if isinstance(target, Bounded) else None

    @abstractmethod
    def together(self, output: TargetOutput, second: TargetOutput) -> TargetOutput:
        """The output of both passes over the same nodes, together."""

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        begun = self.target.start(inputs, limit, width)
        second = self.second.start(self.prompt(begun.prompt, begun.pads), limit, width)
        cache = PairedCache(begun.cache, second.cache)
        output, rounding = self.together(begun.output, second.output), begun.rounding or second.rounding
        return Prefill(cache, output, begun.prompt, begun.pads, rounding=rounding)

    def verify(self, cache: PairedCache, draft: Draft, first: int = 0) -> TargetOutput:
        output = self.target.verify(cache.own, draft, first)
        return self.together(output, self.second.verify(cache.second, draft, first))

    def commit(self, cache: PairedCache, path: Tensor, count: Tensor) -> None:
        self.target.commit(cache.own, path, count)
        self.second.commit(cache.second, path, count)

    def truncate(self, cache: PairedCache, length: Tensor) -> None:
        raise NotImplementedError("the prompts of the two models differ in length")

    def synced(self, cache: PairedCache, emitted: Sequence[int]) -> None:
        for target, own in ((self.target, cache.own), (self.second, cache.second)):
            if isinstance(target, LengthAware):
                target.synced(own, emitted)


def padded(rows: Sequence[Tensor]) -> dict[str, Tensor]:
    """Prompts of ids `[n]` each, padded on the left, as a target's inputs."""
    widest = max(map(len, rows))
    ids = torch.stack([torch.nn.functional.pad(row, (widest - len(row), 0)) for row in rows])
    empty = torch.tensor([[widest - len(row)] for row in rows], device=ids.device)
    return {"input_ids": ids, "attention_mask": (torch.arange(widest, device=ids.device) >= empty).long()}
