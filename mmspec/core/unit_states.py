"""The hidden states that a call's new units were drawn from, round by round: what a head beside the text reads.

A unit is drawn from the state of the unit before it, the first one from that of the prompt's last unit. So the state of
unit i itself is collected for unit i + 1; that of the newest one is not known, because no pass has read it. Which
drafts were accepted, and in how many passes, makes no difference to what is collected but rounding.
"""

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.state import State


class UnitStates:
    """Collects the states of a call whose target gives them (`GivesHidden.with_hidden`); nothing waits for the device.

    Example:
        ```python
        decoder, states = decoder_for(model, "suffix", hidden=[FINAL]), UnitStates()
        for state in decoder.rounds(inputs, limit):
            states.step(state)
        rows = states.rows()  # one tensor [unit, width] a row
        ```
    """

    def __init__(self) -> None:
        self._rounds: list[tuple[Tensor, Tensor]] = []  # states [batch, node, width] of a path, and how many count

    def step(self, state: State) -> None:
        """Take the states of the last round. Call it with every state of `Decoder.rounds`, the first one included."""
        assert state.step is not None
        hidden = state.step.scores.hidden
        if hidden is None:
            raise ValueError("the target gives no hidden states: decoder_for(model, method, hidden=[FINAL])")
        nodes = torch.nn.functional.pad(state.step.verdict.path.clamp(min=0), (1, 0))  # the root first
        self._rounds.append((take_nodes(hidden, nodes), state.step.count))

    def rows(self) -> list[Tensor]:
        """Of every row the states `[unit, width]` that its new units were drawn from, one for each."""
        counts = torch.stack([count for _, count in self._rounds], 1).tolist()  # [row, round]
        return [
            torch.cat([states[row, :count] for (states, _), count in zip(self._rounds, own, strict=True)])
            for row, own in enumerate(counts)
        ]
