"""Pictures as a modality of `mmspec bench`: a caption each."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mmspec.bench.pipelines import Modality
from mmspec.kits.pictures.example_captions import CAPTIONS
from mmspec.kits.pictures.pipeline import PicturePipeline

QUICK = 2
"""Most captions of a quick benchmark."""


def pictures(kind: str, unit: str) -> Modality:
    """The modality of pictures whose units are called `unit`."""
    return Modality(kind, unit, "picture", calls, units)


def calls(pipe: Any, prompts: list[str] | int, short: bool) -> list[Mapping[str, Any]]:
    """A call for every caption.

    Raises:
        ValueError: The pipeline draws no pictures.
    """
    if not isinstance(pipe, PicturePipeline):
        raise ValueError(f"{pipe.config._name_or_path} draws no pictures: it is a {type(pipe).__name__}")
    captions = CAPTIONS[:prompts] if isinstance(prompts, int) else prompts
    return [{"prompt": caption} for caption in captions[: QUICK if short else None]]


def units(output: Any) -> list[Tensor]:
    """The units of every picture in raster order."""
    return [row.flatten(0, 1).cpu() for row in output[0]]
