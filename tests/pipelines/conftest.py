"""Pipelines of every modality: tiny ones, and one call of each."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from tests.continuous.conftest import pipe as continuous  # noqa: F401  fixtures
from tests.continuous.conftest import small_vae  # noqa: F401
from tests.image.conftest import by_caption, janus_processor, small_vq, tiny, words  # noqa: F401
from tests.image.test_janus_pipeline import folder  # noqa: F401
from tests.image.test_janus_pipeline import pipe as janus  # noqa: F401
from tests.image.test_written_pipelines import emu3, lumina  # noqa: F401
from tests.video.test_pipeline_video import pipes  # noqa: F401


def shot(rows: int = 1) -> Tensor:
    return torch.rand(rows, 1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def film(pipe: Any) -> Tensor:
    made: Tensor = pipe(shot(), [0, 1, 2], seed=0, output_type="pt").frames
    return made


def picture(**how: Any) -> Callable[[Any], Tensor]:
    return lambda pipe: pipe("a red fox", seed=0, output_type="latent", **how).images


CALLS: Mapping[str, Callable[[Any], Tensor]] = MappingProxyType(
    {
        "text": lambda pipe: pipe("def main(", 24, seed=0).ids[0],
        "tiny": lambda pipe: pipe("red heart", seed=0, output_type="pt").images,
        "continuous": lambda pipe: pipe("red heart", seed=0, output_type="pt").images,
        "janus": picture(),
        "emu3": picture(height=8, width=10),
        "lumina": picture(height=8, width=12),
        "codes": film,
        "denoised": film,
        "published": film,
    }
)
"""By the name of a pipeline, a call of it."""


@pytest.fixture(scope="module")
def text() -> Any:
    return mmspec.Pipeline.from_pretrained("mmspec/text-1m")


@pytest.fixture(scope="module", params=CALLS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pipe(name: str, request: pytest.FixtureRequest) -> Any:
    """A pipeline with a method of its own."""
    films = name in ("codes", "denoised", "published")
    found = request.getfixturevalue("pipes")[name] if films else request.getfixturevalue(name)
    parts = {part: value for part, value in found.config.items() if not part.startswith("_")}
    made = type(found)(**{**parts, **found.components})
    made.set_progress_bar_config(disable=True)
    return made
