"""A target that is mixed with a second model, which reads another prompt: RAPID's retrieval-augmented target.

RAPID (arXiv 2502.20330, its released code): with z the first model's scores, p = softmax(z), q the second model's
distribution, and g = p - q where q is at least `alpha` times its largest value, else 0, the mixed distribution is
p̂ = softmax(z - eta · g). What the second model finds likelier than the first becomes likelier, and the reverse.
p̂ is a distribution of the text so far alone: it depends on no draft. So it is a target like any other, and every rule
is exact for it, `match` with the same seed and whoever drafts. The released code accepts by p̂ and draws what replaces a
refused unit from norm(max(p - q, p - p̂, 0)), and the unit behind an accepted draft from p: it follows neither p nor p̂.
The call's temperature and other processors act on the scores z - eta · g.
Costs: a pass of the second model beside every pass of the first one.
Knobs: `eta` (0: the first model alone), `alpha` (higher changes fewer units).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.capabilities import Bounded, LengthAware
from mmspec.core.protocols import Target
from mmspec.core.types import Draft, Prefill, TargetOutput


@dataclass
class AugmentedCache:
    """The caches of both models, of one call."""

    own: Any
    second: Any


class AugmentedTarget:
    """Two targets of the same units as one.

    `prompt` makes what the second one reads, from the prompt's units `[batch, length]` and their padding `[batch]`.

    Raises:
        ValueError: Their units differ.
    """

    def __init__(
        self, target: Target, second: Target, prompt: Callable[[Tensor, Tensor], Any], eta: float, alpha: float
    ) -> None:
        if target.vocab is None or target.vocab != second.vocab:
            raise ValueError(
                f"the second model has {second.vocab} unit ids and the target {target.vocab}; their distributions are "
                "mixed over one vocabulary"
            )
        self.target, self.second, self.prompt, self.eta, self.alpha = target, second, prompt, eta, alpha
        self.offers = target.offers & (second.offers | {"text"}) - {"hidden", "live", "truncate"}
        self.vocab: int | None = target.vocab
        self.context: int | None = target.context if isinstance(target, Bounded) else None

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        begun = self.target.start(inputs, limit, width)
        second = self.second.start(self.prompt(begun.prompt, begun.pads), limit, width)
        cache = AugmentedCache(begun.cache, second.cache)
        output, rounding = self._mixed(begun.output, second.output), begun.rounding or second.rounding
        return Prefill(cache, output, begun.prompt, begun.pads, rounding=rounding)

    def verify(self, cache: AugmentedCache, draft: Draft, first: int = 0) -> TargetOutput:
        output = self.target.verify(cache.own, draft, first)
        return self._mixed(output, self.second.verify(cache.second, draft, first))

    def commit(self, cache: AugmentedCache, path: Tensor, count: Tensor) -> None:
        self.target.commit(cache.own, path, count)
        self.second.commit(cache.second, path, count)

    def truncate(self, cache: AugmentedCache, length: Tensor) -> None:
        raise NotImplementedError("the prompts of the two models differ in length")

    def synced(self, cache: AugmentedCache, emitted: Sequence[int]) -> None:
        for target, own in ((self.target, cache.own), (self.second, cache.second)):
            if isinstance(target, LengthAware):
                target.synced(own, emitted)

    def _mixed(self, output: TargetOutput, second: TargetOutput) -> TargetOutput:
        assert output.logits is not None and second.logits is not None, "both are models over a vocabulary"
        return TargetOutput(logits=mixed(output.logits, second.logits, self.eta, self.alpha), null=output.null)


def mixed(scores: Tensor, second: Tensor, eta: float, alpha: float) -> Tensor:
    """z - eta · g, float32, of both models' scores, `[…, vocab]`."""
    z, q = scores.float(), second.float().softmax(-1)
    apart = torch.where(q >= alpha * q.amax(-1, keepdim=True), z.softmax(-1) - q, 0.0)
    return z - eta * apart
