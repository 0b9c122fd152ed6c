"""Drafters by topic: the router of online speculative decoding (Liu et al., arXiv 2310.07177, § 4.3)."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class Topics:
    """A router that knows topics by example texts; it is a `route` of `mmspec.Learning`.

    A prompt belongs to the topic whose texts have its units about as often: of the square roots of how often each unit
    comes, the inner product with the topic's mean is the largest (the Bhattacharyya coefficient, but for its length).

    Args:
        examples: By the topic's name, some texts as unit ids, `[…]` int64 each.

    Raises:
        ValueError: There are not two topics, or one has no text.
    """

    def __init__(self, examples: Mapping[str, Sequence[Tensor]]) -> None:
        if len(examples) < 2 or not all(len(texts) and all(len(text) for text in texts) for texts in examples.values()):
            raise ValueError("a router chooses among two topics or more, each known by one text or more")
        self._names = list(examples)
        size = 1 + max(int(text.max()) for texts in examples.values() for text in texts)
        means = [sum(_often(text, size) for text in texts) for texts in examples.values()]
        self._means = torch.nn.functional.normalize(torch.stack(means), dim=-1)  # type: ignore[arg-type]

    def __call__(self, units: Tensor) -> str:
        """The topic's name, of a prompt's units `[unit]` int64."""
        known = units.cpu()[units.cpu() < self._means.shape[1]]
        return self._names[int((self._means @ _often(known, self._means.shape[1])).argmax())]


def _often(units: Tensor, size: int) -> Tensor:
    """The square roots of the units' counts, of length 1: `[size]` float32."""
    return torch.nn.functional.normalize(units.cpu().flatten().bincount(minlength=size).float().sqrt(), dim=0)
