"""Guidance that a call brings along: targets that read an unconditional prompt beside the prompt itself."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

NULL_INPUTS = "null_inputs"
"""The key of a prompt's mapping under which the unconditional prompt stands, itself a mapping of ids and mask."""


@runtime_checkable
class TakesNull(Protocol):
    """A target whose `start` reads a prompt under `NULL_INPUTS` and then returns unconditional scores, too."""

    def takes_null(self, inputs: Mapping[str, Any], null: Mapping[str, Any]) -> bool:
        """True if both prompts can be decoded as two halves of one batch.

        Args:
            inputs: The prompt, as `start` takes it.
            null: `input_ids` and `attention_mask` of what guidance leads away from.
        """
