"""`mmspec demo image`: the shipped model draws the same emoji plainly, in fewer passes, in fewer still at a price."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mmspec
from mmspec.kits.pictures.demo import draw_demo, make_room

MODEL = "mmspec/emoji"
CAPTIONS = (
    "heavy black heart",
    "police officer skin 4",
    "couple with heart skin 1 2",
    "construction worker skin 4",
    "princess skin 4",
    "guardsman skin 5",
    "mountain bicyclist skin 4",
    "raised hand skin 3",
)
GUIDANCE = 2.0
ROWS: Mapping[str, Mapping[str, Any]] = {"plain": {}, "gs-sjd": {"k": 16}, "gsd": {"k": 16}}


def demo_image(out: Path) -> None:
    """Write the sheet `out`, print passes, acceptance lengths and seconds."""
    make_room(out)
    draw_demo(mmspec.Pipeline.from_pretrained(MODEL), ROWS, CAPTIONS, GUIDANCE, out)
