"""Model cards: Hugging Face cards with an `mmspec:` block, rendered from the facts beside the weights, never typed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from mmspec.shipped import folder


@dataclass(frozen=True)
class Shipped:
    """What a card says beside the measured facts.

    Attributes:
        name: The model's name, without `mmspec/`.
        summary: What it is, in a sentence or two.
        target: The target adapter that runs it.
        method: The method it is used with by default: `auto`, or the one that was measured to be best.
        drafter: The draft model that the method needs; or None.
        data: What it learned from, with licences: one line each.
        command: What trained it.
        tags: For the front matter.
    """

    name: str
    summary: str
    target: str
    method: str
    drafter: str | None
    data: Sequence[str]
    command: str
    tags: Sequence[str]


def render(shipped: Shipped, facts: Mapping[str, Any]) -> str:
    """The card of a shipped model.

    Args:
        shipped: What it is.
        facts: Its `training.json`: parameters, recipe, held-out losses in nats per token.
    """
    front = ModelCardData(
        license="apache-2.0",
        library_name="mmspec",
        tags=list(shipped.tags),
        mmspec={
            "target": shipped.target,
            "default_method": shipped.method,
            **({"drafter": shipped.drafter} if shipped.drafter else {}),
            "key_layout": "transformers",
        },
    )
    losses = "\n".join(f"| {name} | {value:.3f} |" for name, value in facts["held_out_nats_per_token"].items())
    recipe = ", ".join(f"{key} {value}" for key, value in facts["recipe"].items())
    data = "\n".join(f"- {line}" for line in shipped.data)
    return (
        f"---\n{front.to_yaml()}\n---\n\n# mmspec/{shipped.name}\n\n{shipped.summary}\n\n"
        f"{facts['parameters']:,} parameters, half-precision safetensors. A model of this size is for demonstrations, "
        "tests and benchmarks of speculation; it knows nothing.\n\n"
        f"## Held-out loss\n\n| text | nats per token |\n|---|---|\n{losses}\n\n"
        f"Held out: {', '.join(f'`{m}`' for m in facts['held_out_modules'])}, and the last "
        f"{facts['held_out_prose_share']:.0%} of the prose.\n\n"
        f"## Training\n\n`{shipped.command}` ({recipe}).\n\n{data}\n"
    )


def block(name: str) -> dict[str, Any]:
    """The `mmspec:` block of a shipped card; empty where there is no such card."""
    path = folder("model_cards") / f"{name}.md"
    if not path.is_file():
        return {}
    found = ModelCard.load(path).data.to_dict().get("mmspec")
    return dict(found) if isinstance(found, dict) else {}


def write(shipped: Shipped, assets: Path, cards: Path) -> Path:
    """Render the card of `assets/<name>` into `cards/<name>.md`."""
    facts = json.loads((assets / shipped.name / "training.json").read_text())
    path = cards / f"{shipped.name}.md"
    ModelCard(render(shipped, facts)).save(path)
    return path
