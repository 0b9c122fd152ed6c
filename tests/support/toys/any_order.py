"""Toy text with blanks: the token at a position is pulled by every other one that is known, whatever the order."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts.any_order import Filling, Infill, View


class AnyOrderTarget:
    """p(token at i | tokens at a set of other positions) = softmax(base[i] + Σ_j pull[i, j, token j]).

    These are conditionals by construction; as in trained models, their product depends on the order.

    Args:
        base: `[length, vocab]` logits.
        pull: `[length, length, vocab, vocab]`: what a token at the second position adds at the first.
        mask: An id that no text has; None: there is none.
        repeats: How often a call has every text of its prompt: plain lists of many rows take long.
    """

    offers = frozenset({"discrete", "any-order", "truncate"})

    def __init__(self, base: Tensor, pull: Tensor, mask: int | None = None, repeats: int = 1) -> None:
        self.base, self.pull, self.mask, self.repeats = base, pull, mask, repeats
        self.vocab: int | None = base.shape[1]

    @classmethod
    def random(
        cls, length: int, vocab: int, seed: int, mask: int | None = None, sharpness: float = 1.0
    ) -> "AnyOrderTarget":
        """Gaussian logits."""
        generator = torch.Generator().manual_seed(seed)
        base = torch.randn(length, vocab, generator=generator)
        return cls(base * sharpness, torch.randn(length, length, vocab, vocab, generator=generator) * sharpness, mask)

    def start(self, inputs: Infill, limit: int, width: int) -> Prefill:
        """Texts of at most `length` tokens."""
        once = Filling.begin(inputs, torch.device("cpu"))
        known = once.prefill(inputs, TargetOutput())
        tensors = (once.ids, once.place, once.rank, once.blanks, once.count, known.prompt, known.pads)
        ids, place, rank, blanks, count, prompt, pads = (
            each.repeat(self.repeats, *[1] * (each.dim() - 1)) for each in tensors
        )
        cache = Filling(ids, place, rank, blanks, count)
        return Prefill(cache, self._scored(cache.ahead(cache.ids[:, :0], 1)), prompt, pads)

    def verify(self, cache: Filling, draft: Draft, first: int = 0) -> TargetOutput:
        return self._scored(cache.of_draft(draft))

    def commit(self, cache: Filling, path: Tensor, count: Tensor) -> None:
        cache.commit(path, count)

    def truncate(self, cache: Filling, length: Tensor) -> None:
        cache.truncate(length)

    def ahead(self, cache: Filling, root: Tensor, units: int) -> TargetOutput:
        return self._scored(cache.ahead(root[:, None], units))

    def left(self, cache: Filling) -> Tensor:
        return cache.left

    def _scored(self, view: View) -> TargetOutput:
        others = torch.arange(view.ids.shape[1])
        pulls = self.pull[view.asked[..., None], others, view.ids[:, None]]  # [batch, query, length, vocab]
        return view.output(self.base[view.asked] + torch.where(view.seen[..., None], pulls, 0).sum(2), self.mask)

    def probabilities(self, place: int, known: Mapping[int, int]) -> Tensor:
        """`[vocab]` of the token at a position, given tokens by their positions; in closed form, float64."""
        logits = self.base[place].double()
        for other, token in known.items():
            logits = logits + self.pull[place, other, token].double()
        if self.mask is not None:
            logits[self.mask] = -torch.inf
        return logits.softmax(-1)
