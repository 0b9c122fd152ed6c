"""Drafters in plain Python: the adapter does batching, padding and checks.

A `HostDrafter` gets lists of unit ids and returns lists. Its proposals are point masses, exact under every rule that
takes chains.
"""

from typing import Any, Protocol, runtime_checkable

import torch

from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step


@runtime_checkable
class HostDrafter(Protocol):
    """A drafter in plain Python: one method."""

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        """Up to `k` next unit ids for every row.

        Args:
            tokens: Every row's prompt and output so far, padding removed.
            k: Most ids per row; fewer, or none, are allowed.
        """
        ...


class HostDrafterAdapter:
    """The `Drafter` that runs a `HostDrafter`.

    Args:
        author: The plain-Python drafter.
    """

    offers = frozenset({"chain"})
    needs = frozenset({"discrete"})

    def __init__(self, author: HostDrafter) -> None:
        self.author = author
        self._vocab = 0

    def bind(self, target: Target) -> None:
        assert target.vocab is not None
        self._vocab = target.vocab

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> Any:
        return None

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        history, pads = state.history.tolist(), state.pads.tolist()
        tokens = [row[p : state.prompt_length + n] for row, p, n in zip(history, pads, state.host_emitted, strict=True)]
        drafts = [list(d)[:k] for d in self.author.propose(tokens, k)]
        self._refuse(drafts, state.rows)
        width = max(map(len, drafts))
        padded = torch.tensor([d + [0] * (width - len(d)) for d in drafts], device=state.root.device).long()
        lengths = torch.tensor([len(d) for d in drafts], device=state.root.device)
        return Draft.chain(
            padded.reshape(state.rows, width), valid=torch.arange(width, device=lengths.device) < lengths[:, None]
        )

    def observe(self, state: State, step: Step) -> None:
        pass

    def _refuse(self, drafts: list[list[int]], rows: int) -> None:
        if len(drafts) != rows:
            raise ValueError(f"{type(self.author).__name__}.propose returned {len(drafts)} rows for {rows}")
        outside = [i for d in drafts for i in d if not 0 <= i < self._vocab]
        if outside:
            raise ValueError(f"{type(self.author).__name__} proposed id {outside[0]}; ids are 0 … {self._vocab - 1}")
