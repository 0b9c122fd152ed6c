"""What a stage of training returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Trained:
    """A trained drafter.

    Attributes:
        write: Writes its files into a folder, which it makes if it is missing.
        facts: `parameters`, and `held_out`: what was counted on held-out text, by the text's name.
    """

    write: Callable[[Path], None]
    facts: Mapping[str, Any]
