"""What the cards of the shipped image models say."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmspec.report.cards import Shipped, write
from mmspec.report.views import View


def held_out(facts: Mapping[str, Any]) -> View:
    """How pictures that were held out fare: cross-entropy of their codes, and the tokenizer's reconstruction."""
    losses = facts["held_out_nats_per_code"].items()
    rows = [(f"nats per code, {given}", f"{nats:.3f}") for given, nats in losses]
    rows.append(("reconstruction, PSNR in dB", f"{facts['reconstruction_psnr_db']:.2f}"))
    rows.append(("codes used", str(facts["codes_used"])))
    return View("Held-out pictures", ("what", "value"), rows, f"Held out: {facts['held_out']}.")


SHIPPED: tuple[Shipped, ...] = ()


def write_all(assets: Path, cards: Path) -> None:
    """Render the cards of the models in `assets`."""
    cards.mkdir(parents=True, exist_ok=True)
    for shipped in SHIPPED:
        write(shipped, assets, cards)
