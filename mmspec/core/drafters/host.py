"""Drafters in plain Python: the adapter does batching, padding and checks.

A `HostDrafter` gets lists of unit ids and returns lists. Its proposals are point masses, exact under every rule that
takes chains.
"""

from typing import Any, Protocol, SupportsIndex, runtime_checkable

import torch

from mmspec.core.drafters.emitted import KnownTexts
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.transfer import on_device
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


@runtime_checkable
class DraftsTexts(Protocol):
    """A drafter that reads nothing but texts, so that engines without our targets can ask it (`mmspec.bridges`)."""

    def of_texts(self) -> HostDrafter:
        """The same drafter as a function of whole texts; it may remember them from call to call."""


class HostDrafterAdapter:
    """The `Drafter` that runs a `HostDrafter`."""

    offers = frozenset({"chain"})
    needs = frozenset({"discrete"})

    def __init__(self, author: HostDrafter) -> None:
        self.author, self._name = author, type(author).__name__
        self._vocab = 0

    def bind(self, target: Target) -> None:
        assert target.vocab is not None
        self._vocab = target.vocab

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> KnownTexts:
        return KnownTexts(state)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        memory: KnownTexts = state.memory
        known = [state.prompt_length - p + n for p, n in zip(state.host.pads, state.host.emitted, strict=True)]
        tokens = [text[:n] for text, n in zip(memory.read(state), known, strict=True)]
        drafts = [list(d)[:k] for d in self.author.propose(tokens, k)]
        self._refuse(drafts, state.rows)
        return chains(drafts, state.root.device)

    def observe(self, state: State, step: Step) -> None:
        state.memory.observe(state, step)

    def _refuse(self, drafts: list[list[int]], rows: int) -> None:
        if len(drafts) != rows:
            raise ValueError(f"{self._name}.propose returned {len(drafts)} rows for {rows}")
        strange = [i for d in drafts for i in d if not isinstance(i, SupportsIndex)]
        if strange:
            raise TypeError(f"{self._name} proposed {strange[0]!r}; unit ids are integers")
        outside = [i for d in drafts for i in d if not 0 <= i < self._vocab]
        if outside:
            raise ValueError(f"{self._name} proposed id {outside[0]}; ids are 0 … {self._vocab - 1}")


def chains(drafts: list[list[int]], device: torch.device) -> Draft:
    """A chain for every row; rows with a shorter one are filled with invalid nodes."""
    width = max(map(len, drafts))
    units = on_device([draft + [0] * (width - len(draft)) for draft in drafts], device, torch.int64)
    valid = on_device([[i < len(draft) for i in range(width)] for draft in drafts], device, torch.bool)
    return Draft.chain(units.reshape(len(drafts), width), valid=valid.reshape(len(drafts), width))
