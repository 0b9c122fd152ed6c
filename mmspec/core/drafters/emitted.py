"""The units that a call emits, and its texts: for drafters that count or compare them.

On the host they come with the host sync of the round that emitted them, so that reading them is no wait of its own.
"""

import torch
from torch import Tensor

from mmspec.core.state import State
from mmspec.core.types import Step


def emitted_units(state: State, step: Step) -> tuple[Tensor, Tensor]:
    """The units that a settled round emitted, `[batch, slot]` on the device, and which slots hold one: bool."""
    slot = torch.arange(step.verdict.path.shape[1] + 1, device=step.count.device)
    first = state.emitted - step.count + state.prompt_length
    at = (first[:, None] + slot).clamp(max=state.history.shape[1] - 1)
    return state.history.gather(1, at), slot < step.count[:, None]


class EmittedUnits:
    """The emitted units of a call's rows, on the host; of a call whose first unit is emitted."""

    def __init__(self, state: State) -> None:
        first = state.history[:, state.prompt_length : state.prompt_length + max(state.host_emitted)].tolist()
        self._read = [0] * state.rows
        self._under_way = list[Tensor]()
        self._arrived = [[[0, n, *units] for n, units in zip(state.host_emitted, first, strict=True)]]

    def observe(self, state: State, step: Step) -> None:
        """Start the copy of a settled round's units: before the sync of that round."""
        units, _ = emitted_units(state, step)
        found = torch.cat([(state.emitted - step.count)[:, None], step.count[:, None], units], 1)
        self._under_way.append(found.to("cpu", non_blocking=True))  # in pinned memory, and complete after the sync

    def read(self, state: State) -> list[list[int]]:
        """The units of every row since the last reading: after a sync."""
        rounds: list[list[list[int]]] = [*self._arrived, *(found.tolist() for found in self._under_way)]
        self._arrived, self._under_way = [], []
        new: list[list[int]] = [[] for _ in range(state.rows)]
        for rows in rounds:
            for b, row in enumerate(rows):
                before, count, units = row[0], row[1], row[2:]
                have = self._read[b] + len(new[b])
                if before <= have:
                    new[b] += units[have - before : max(min(before + count, state.host_emitted[b]) - before, 0)]
        known = [read + len(units) for read, units in zip(self._read, new, strict=True)]
        if any(n > m for n, m in zip(state.host_emitted, known, strict=True)):  # rounds that were not observed
            first = min(known)
            late = state.history[
                :, state.prompt_length + first : state.prompt_length + max(state.host_emitted)
            ].tolist()
            for b, units in enumerate(late):
                new[b] += units[known[b] - first : max(state.host_emitted[b], known[b]) - first]
        self._read = [read + len(units) for read, units in zip(self._read, new, strict=True)]
        return new


class KnownTexts:
    """Prompt and output of every row of a call, padding removed, on the host."""

    def __init__(self, state: State) -> None:
        self._texts = prompts_of(state)
        self._emitted = EmittedUnits(state)

    def observe(self, state: State, step: Step) -> None:
        """See `EmittedUnits`."""
        self._emitted.observe(state, step)

    def read(self, state: State) -> list[list[int]]:
        """The texts as they are now: after a sync."""
        for text, new in zip(self._texts, self._emitted.read(state), strict=True):
            text += new
        return self._texts


def prompts_of(state: State) -> list[list[int]]:
    """The prompts of a call's rows, padding removed, on the host."""
    prompts = state.history[:, : state.prompt_length].tolist()
    return [prompt[pads:] for prompt, pads in zip(prompts, state.host_pads, strict=True)]
