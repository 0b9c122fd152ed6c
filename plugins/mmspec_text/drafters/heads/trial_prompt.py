"""The piece of a user's prompt on which a head is tried."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mmspec.core.state import State
from mmspec.hosts.prefill import PLAIN

UNITS, FEWEST = 64, 16
"""Units of a trial, and the fewest from which its numbers say anything."""


def trial_ids(state: State, inputs: Any) -> Tensor | None:
    """The last ids `[unit]` of the longest prompt; None if they are too few, or if a prompt has more than ids."""
    if isinstance(inputs, Mapping) and not inputs.keys() <= PLAIN:
        return None
    row = int(state.pads.argmin())
    ids: Tensor = state.history[row, int(state.pads[row]) : state.prompt_length][-UNITS:]
    return ids if len(ids) >= FEWEST else None
