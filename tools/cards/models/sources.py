"""What the cards of shipped language models share: training data, and a table of held-out losses."""

from collections.abc import Mapping
from typing import Any

from mmspec.report.views import View

SOURCES = (
    "The source of Python's standard library without its tests (Python Software Foundation License 2.0).",
    "The plays of William Shakespeare, as collected in tinyshakespeare (public domain).",
)


def held_out(facts: Mapping[str, Any]) -> View:
    """A table of held-out losses, with a note on the held-out text."""
    rows = [(name, f"{value:.3f}") for name, value in facts["held_out_nats_per_token"].items()]
    modules = ", ".join(facts["held_out_modules"])
    note = f"Held out: {modules}, and the last {facts['held_out_prose_share']:.0%} of the prose."
    return View("Held-out loss", ("text", "nats per token"), rows, note)
