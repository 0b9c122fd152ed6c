"""`mmspec demo continuous`: the shipped model draws emoji, plainly and speculatively, side by side."""

from pathlib import Path
from typing import Annotated, Any

import typer

MODEL = "mmspec/emoji-continuous"
ROWS: dict[str, dict[str, Any]] = {"plain": {}, "reflection": {"k": 16}}
CAPTIONS = (
    "police officer skin 4",
    "princess skin 4",
    "smiling face with sunglasses",
)
GUIDANCE = 3.0


def demo_continuous(
    out: Annotated[Path, typer.Option("--out", "-o", help="The sheet; its ending says the format.")] = Path(
        "demo-output/continuous.png"
    ),
) -> None:
    """Draw emoji of continuous tokens: one distribution, a row for each method."""
    from mmspec.kits.pictures.demo import demonstrate

    demonstrate(MODEL, ROWS, CAPTIONS, GUIDANCE, out)
