"""Pictures as a modality of `mmspec bench`: a caption each, of an emoji; no model was trained on half of them."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mmspec.bench.pipelines import Modality
from mmspec.kits.pictures.pipeline import PicturePipeline

HELD_OUT = (
    "earth globe asia australia", "white sun behind cloud", "rose", "french fries", "trophy", "elephant",
    "ok hand sign skin 5", "athletic shoe", "ghost", "sparkling heart", "clock face three oclock", "relieved face",
    "vertical traffic light", "flying saucer", "croissant", "hot beverage",
)  # fmt: skip
"""Captions of pictures that the model was not trained on."""
SEEN = (
    "heavy black heart", "red apple", "cat face", "rocket", "smiling face with sunglasses", "slice of pizza",
    "police officer skin 4", "house building", "penguin", "guitar", "evergreen tree", "thumbs up sign skin 5",
    "umbrella", "soccer ball", "blue book", "birthday cake",
)  # fmt: skip
"""Captions of pictures that it was."""
CAPTIONS = tuple(caption for pair in zip(SEEN, HELD_OUT, strict=True) for caption in pair)
QUICK = 2  # most captions of a quick benchmark


def pictures(kind: str, unit: str) -> Modality:
    """The modality of pictures whose units are called `unit`."""
    return Modality(kind, unit, "picture", calls, units)


def calls(pipe: Any, prompts: list[str] | int, short: bool) -> list[Mapping[str, Any]]:
    """A call for every caption."""
    if not isinstance(pipe, PicturePipeline):
        raise ValueError(f"{pipe.config._name_or_path} draws no pictures: it is a {type(pipe).__name__}")
    captions = CAPTIONS[:prompts] if isinstance(prompts, int) else prompts
    return [{"prompt": caption} for caption in captions[: QUICK if short else None]]


def units(output: Any) -> list[Tensor]:
    """The units of every picture in raster order."""
    return [row.flatten(0, 1).cpu() for row in output[0]]
