"""A trained pipeline as a folder that `from_pretrained` reads, with its facts beside the weights."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmspec.files import save_sealed
from mmspec.training.work import claimed, digest
from tools.bench.pictures.quality import write_quality
from tools.train.pictures.data import HELD_OUT, Pictures, pixels
from tools.train.pictures.features import train_features


def ship(pipe: Any, facts: dict[str, Any], folder: Path, also: Callable[[Path], Any] = lambda folder: None) -> None:
    """Write a pipeline, whole or not at all.

    Args:
        pipe: A diffusers pipeline; its models in the precision that is wanted.
        facts: What the card says of the model; written as `training.json`.
        folder: Receives the pipeline; one that is there as this function left it is replaced.
        also: Writes more into the new folder before it takes its place.
    """

    def write(side: Path) -> None:
        pipe.save_pretrained(side)
        also(side)
        (side / "training.json").write_text(json.dumps(facts, indent=2) + "\n")

    save_sealed(folder, write)


def train_and_ship(
    name: str,
    pictures: Pictures,
    recipe: Any,
    out: Path,
    work: Path,
    device: str,
    say: Callable[[str], None],
    *,
    train: Callable[..., tuple[Any, Any, Any]],
    facts_of: Callable[..., dict[str, Any]],
    pipeline: Callable[..., Any],
) -> None:
    """Train a model of captions and the features that judge its pictures, and write `<out>/<name>`.

    `train` takes pictures, recipe, `work` (a folder for checkpoints), device and `say` (receives lines of progress),
    and returns the autoencoder, the encoder with the transformer, and the tokenizer. `facts_of` makes of these three,
    pictures and recipe what the card says; `pipeline`, of transformer, autoencoder, text encoder and tokenizer, the
    pipeline.

    Raises:
        ValueError: `work` is another run's, or of another recipe; or training cannot go on.
    """
    data = digest((pictures.images, *pictures.captions))
    with claimed(work, asdict(recipe) | {"data": data}):
        autoencoder, model, tokenizer = train(pictures, recipe, work, device, say)
        features = train_features(pictures, tokenizer, work, device, lambda line: say(f"features: {line}"))
        found = facts_of(autoencoder, model, tokenizer, pictures, recipe)
        seen = pixels(pictures.images[~pictures.held_out])
        pipe = pipeline(model.transformer.half(), autoencoder.half(), model.encoder.half(), tokenizer)
        ship(pipe, found, out / name, also=lambda folder: write_quality(folder, features, seen))
        say(f"{name}: {found['parameters']:,} parameters")


def facts(recipe: Any, *models: Any, **measured: Any) -> dict[str, Any]:
    """What the card says: parameters of the models, what was `measured` of held-out pictures, and the recipe."""
    parameters = sum(p.numel() for model in models for p in model.parameters())
    beside = {"held_out": f"every {HELD_OUT}th picture", "recipe": asdict(recipe)}
    return {"parameters": parameters, **measured, **beside}
