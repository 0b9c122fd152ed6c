"""A trained pipeline as a folder that `from_pretrained` reads, with its facts beside the weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmspec.files import save_whole


def ship(pipe: Any, facts: dict[str, Any], folder: Path, also: Callable[[Path], Any] = lambda folder: None) -> None:
    """Write a pipeline, whole or not at all.

    Args:
        pipe: Of diffusers' kind; its models in the precision that is wanted.
        facts: What the card says of it; written as `training.json`.
        folder: What is there is replaced.
        also: Writes more into the new folder before it takes its place.
    """

    def write(side: Path) -> None:
        pipe.save_pretrained(side)
        also(side)
        (side / "training.json").write_text(json.dumps(facts, indent=2) + "\n")

    save_whole(folder, write)
