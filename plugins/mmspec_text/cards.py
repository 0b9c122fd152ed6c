"""What the cards of the shipped text models say."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmspec.report.cards import Shipped, write
from mmspec.report.views import View

_DATA = (
    "The source of Python's standard library without its tests (Python Software Foundation License 2.0).",
    "The plays of William Shakespeare, as collected in tinyshakespeare (public domain).",
)
_COMMAND = "mmspec train text --prose tinyshakespeare.txt"


def held_out(facts: Mapping[str, Any]) -> View:
    """Held-out loss, and what was held out."""
    rows = [(name, f"{value:.3f}") for name, value in facts["held_out_nats_per_token"].items()]
    modules = ", ".join(f"`{module}`" for module in facts["held_out_modules"])
    note = f"Held out: {modules}, and the last {facts['held_out_prose_share']:.0%} of the prose."
    return View("Held-out loss", ("text", "nats per token"), rows, note)


SHIPPED = (
    Shipped(
        name="text-14m",
        summary="A Llama-architecture language model that continues Python and Shakespeare; byte-level BPE of 4,096.",
        target="transformers",
        method="suffix",
        policy="goodput",
        k=10,
        drafter=None,
        data=_DATA,
        command=_COMMAND,
        tags=("text-generation", "speculative-decoding", "llama"),
        measured=held_out,
    ),
    Shipped(
        name="text-1m",
        summary="A drafter for `mmspec/text-14m`, distilled from it; same tokenizer.",
        target="transformers",
        method="plain",
        drafter=None,
        data=_DATA,
        command=_COMMAND,
        tags=("text-generation", "speculative-decoding", "draft-model", "llama"),
        measured=held_out,
    ),
)


def write_all(assets: Path, cards: Path) -> None:
    """Render the cards of the models in `assets`."""
    cards.mkdir(parents=True, exist_ok=True)
    for shipped in SHIPPED:
        write(shipped, assets, cards)
