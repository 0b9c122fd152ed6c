"""`mmspec demo image`: the shipped model draws the same emoji plainly, in fewer passes, in fewer still at a price."""

from pathlib import Path
from typing import Annotated, Any

import typer

MODEL = "mmspec/emoji"
ROWS: dict[str, dict[str, Any]] = {"plain": {}, "gs-sjd": {"k": 16}, "gsd": {"k": 16}}
CAPTIONS = (
    "heavy black heart",
    "police officer skin 4",
    "couple with heart skin 1 2",
    "princess skin 4",
)
GUIDANCE = 2.0


def demo_image(
    out: Annotated[Path, typer.Option("--out", "-o", help="The sheet of pictures.")] = Path("demo-output/image.png"),
) -> None:
    """The shipped model draws emoji: plainly, the same in fewer passes, and with a lossy rule."""
    from mmspec.kits.pictures.demo import demonstrate

    demonstrate(MODEL, ROWS, CAPTIONS, GUIDANCE, out)
