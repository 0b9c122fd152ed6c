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
        self._read = [0] * state.rows
        # Of every round: its first unit, the units of all rows from there on, and how many each row had before
        self._rounds = [(0, self._units(state, 0, max(state.host.emitted)).to("cpu"), self._read)]
        self._after = torch.tensor(state.host.emitted)  # after the last observed round

    def observe(self, state: State, step: Step) -> None:
        """Start the copy of a settled round's units: before the sync of that round."""
        before = state.host.emitted
        active = [n for n, done in zip(before, state.host.done, strict=True) if not done]
        if active:
            units = self._units(state, min(active), max(active) + step.verdict.path.shape[1] + 1)
            copied = units.to("cpu", non_blocking=True)  # in pinned memory, and complete after the sync
            self._rounds.append((min(active), copied, list(before)))
            self._after = state.emitted.to("cpu", non_blocking=True)

    def read(self, state: State) -> list[list[int]]:
        """The units of every row since the last reading: after a sync."""
        new = self._copied(state.host.emitted)
        known = [read + len(units) for read, units in zip(self._read, new, strict=True)]
        if any(n > m for n, m in zip(state.host.emitted, known, strict=True)):  # rounds that were not observed
            first = min(known)
            for b, units in enumerate(self._units(state, first, max(state.host.emitted)).tolist()):
                new[b] += units[known[b] - first : max(state.host.emitted[b], known[b]) - first]
        self._read = [read + len(units) for read, units in zip(self._read, new, strict=True)]
        return new

    def rest(self) -> list[list[int]]:
        """The units of every row since the last reading, of a call that ended with its last observed round."""
        new = self._copied(self._after.tolist())
        self._read = [read + len(units) for read, units in zip(self._read, new, strict=True)]
        return new

    def _copied(self, emitted: list[int]) -> list[list[int]]:
        """The copied units of every row since the last reading, up to `emitted` of each."""
        new: list[list[int]] = [[] for _ in emitted]
        ends = [*(before for _, _, before in self._rounds[1:]), emitted]
        for (first, copied, _), end in zip(self._rounds, ends, strict=False):
            for b, units in enumerate(copied.tolist()):
                have = self._read[b] + len(new[b])
                if first <= have:
                    new[b] += units[have - first : max(min(end[b], emitted[b]) - first, 0)]
        self._rounds = []
        return new

    @staticmethod
    def _units(state: State, first: int, end: int) -> Tensor:
        """The places `first … end - 1` of all rows; behind a row's last unit they hold anything."""
        return state.history[:, state.prompt_length + first : state.prompt_length + end]


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
    return [prompt[pads:] for prompt, pads in zip(prompts, state.host.pads, strict=True)]
