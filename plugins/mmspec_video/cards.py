"""What the cards of the shipped world models say."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmspec.report.cards import Shipped, write
from mmspec.report.views import View

FACTS = {
    "held_out_nats_per_code": ("cross-entropy of a code", "{:.3f} nats"),
    "held_out_velocity_error": ("squared error of the velocity", "{:.4f}"),
    "held_out_student_gap": ("the student's distance to itself, one step earlier", "{:.4f}"),
    "student_parameters": ("parameters of the student, in low-rank differences", "{:,}"),
    "reconstruction_psnr_db": ("PSNR of the VQ", "{:.2f} dB"),
    "codes_used": ("codes that they use", "{:,}"),
}
"""Names in `training.json`, what they are, and how they are shown."""


def held_out(facts: Mapping[str, Any]) -> View:
    """How held-out episodes fare; a model has some of the numbers."""
    rows = [(what, form.format(facts[name])) for name, (what, form) in FACTS.items() if name in facts]
    recipe = facts["recipe"]
    note = (
        f"Frames of {recipe['width']} × {recipe['height']} pixels, {recipe['episodes']} episodes of "
        f"{recipe['length']}. Held out: {facts['held_out']}."
    )
    return View("Held-out episodes", ("of held-out episodes", "measured"), rows, note)


SHIPPED: tuple[Shipped, ...] = ()


def write_all(assets: Path, cards: Path) -> None:
    """Render the cards of the models in `assets`."""
    cards.mkdir(parents=True, exist_ok=True)
    for shipped in SHIPPED:
        write(shipped, assets, cards)
