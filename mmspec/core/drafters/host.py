"""Drafters in plain Python: the adapter does batching, padding and checks.

A `HostDrafter` gets lists of unit ids and returns lists. Its proposals are point masses, exact under every rule that
takes chains.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from mmspec.core.drafters.emitted import EmittedUnits
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
        ...


@runtime_checkable
class DraftsTexts(Protocol):
    """A drafter that reads nothing but texts, so that engines without our targets can ask it (`mmspec.bridges`)."""

    def of_texts(self) -> HostDrafter:
        """The same drafter as a function of whole texts; it may remember them from call to call."""
        ...


@dataclass
class HostMemory:
    """The memory of one call."""

    texts: list[list[int]]  # prompt and output of every row, padding removed
    emitted: EmittedUnits  # what the call emits


class HostDrafterAdapter:
    """The `Drafter` that runs a `HostDrafter`."""

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

    def start(self, state: State, inputs: Any) -> HostMemory:
        prompts = state.history[:, : state.prompt_length].tolist()
        texts = [prompt[pads:] for prompt, pads in zip(prompts, state.host_pads, strict=True)]
        return HostMemory(texts, EmittedUnits(state))

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        memory: HostMemory = state.memory
        for text, new in zip(memory.texts, memory.emitted.read(state), strict=True):
            text += new
        known = [state.prompt_length - p + n for p, n in zip(state.host_pads, state.host_emitted, strict=True)]
        tokens = [text[:n] for text, n in zip(memory.texts, known, strict=True)]
        drafts = [list(d)[:k] for d in self.author.propose(tokens, k)]
        self._refuse(drafts, state.rows)
        width, device = max(map(len, drafts)), state.root.device
        padded = on_device([d + [0] * (width - len(d)) for d in drafts], device, torch.int64)
        valid = on_device([[i < len(d) for i in range(width)] for d in drafts], device, torch.bool)
        return Draft.chain(padded.reshape(state.rows, width), valid=valid.reshape(state.rows, width))

    def observe(self, state: State, step: Step) -> None:
        state.memory.emitted.observe(state, step)

    def _refuse(self, drafts: list[list[int]], rows: int) -> None:
        if len(drafts) != rows:
            raise ValueError(f"{type(self.author).__name__}.propose returned {len(drafts)} rows for {rows}")
        outside = [i for d in drafts for i in d if not 0 <= i < self._vocab]
        if outside:
            raise ValueError(f"{type(self.author).__name__} proposed id {outside[0]}; ids are 0 … {self._vocab - 1}")
