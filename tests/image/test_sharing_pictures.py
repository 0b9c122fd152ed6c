"""Calls of a picture pipeline that share passes: each picture is that of the call alone."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch

from mmspec_image.pipeline import TextToImagePipeline
from mmspec_image.targets.llamagen import LlamaGenTarget
from tests.support.picture_pipes import quiet

ASKED: tuple[dict[str, Any], ...] = (
    {"prompt": "red heart"},
    {"prompt": "cat", "guidance_scale": 1.0},
    {"prompt": ["blue face", "apple"], "guidance_scale": 2.0, "temperature": 0.5},
    {"prompt": "star apple red face", "negative_prompt": "cat cat", "guidance_scale": 4.0},
    {"prompt": "star", "guidance_scale": 1.0, "num_images_per_prompt": 2},
    {"prompt": "blue cat", "temperature": 0.0},
)
"""Calls with padding and without, guided and not, of several laws and rows."""


@pytest.fixture(scope="module")
def pipe(tiny: TextToImagePipeline) -> TextToImagePipeline:
    return quiet(TextToImagePipeline(**tiny.components).use("gs-sjd", k=6))


def test_pictures_of_calls_at_the_same_time_are_those_of_each_alone(
    pipe: TextToImagePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [pipe(**asked, seed=seed, output_type="pt").images for seed, asked in enumerate(ASKED)]
    widths, verify = list[int](), LlamaGenTarget.verify

    def counted(self: LlamaGenTarget, cache: Any, draft: Any, first: int = 0) -> Any:
        widths.append(len(draft.units))
        return verify(self, cache, draft, first)

    monkeypatch.setattr(LlamaGenTarget, "verify", counted)
    computing = ThreadPoolExecutor(1)
    pipe.share_passes(8, computing)
    with ThreadPoolExecutor(len(ASKED)) as threads:
        ready = threading.Barrier(len(ASKED))

        def call(seed: int, asked: dict[str, Any]) -> torch.Tensor:
            ready.wait()
            images: torch.Tensor = pipe(**asked, seed=seed, output_type="pt").images
            return images

        running = [threads.submit(call, *each) for each in enumerate(ASKED)]
        drawn = [each.result() for each in running]
    assert max(widths) > 2  # rows of several calls
    assert all(torch.equal(ours, own) for ours, own in zip(drawn, alone, strict=True))


def test_what_belongs_to_one_call_is_refused(tiny: TextToImagePipeline) -> None:
    pipe = quiet(TextToImagePipeline(**tiny.components).use("gs-sjd", k=6))
    pipe.share_passes(2)
    with pytest.raises(ValueError, match="k=6 units"):
        pipe("red heart", k=3)

    def other_words(_: Any, step: int, *__: Any) -> dict[str, Any]:
        return {"negative_prompt": ["cat"]} if step == 2 else {}

    with pytest.raises(ValueError, match="shares passes cannot change"):
        pipe("red heart", guidance_scale=2.0, callback_on_step_end=other_words)


def test_a_pipeline_that_was_moved_shares_no_passes(tiny: TextToImagePipeline) -> None:
    pipe = quiet(TextToImagePipeline(**tiny.components).use("gs-sjd", k=6))
    pipe.share_passes(2)
    pipe._bound_device = torch.device("meta")
    with pytest.raises(ValueError, match=r"again after to\("):
        pipe("red heart")


def test_a_call_may_change_its_own_scale(pipe: TextToImagePipeline) -> None:
    def more(copy: Any, step: int, *_: Any) -> dict[str, Any]:
        copy.guidance_scale = 5.0
        return {}

    steered = partial(pipe, "red heart", guidance_scale=2.0, seed=1, output_type="pt", callback_on_step_end=more)
    calls = (steered, partial(pipe, "cat", guidance_scale=2.0, seed=2, output_type="pt"))
    pipe.use("gs-sjd", k=6)
    alone = [call().images for call in calls]
    pipe.share_passes(8)
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(call) for call in calls]
        assert all(torch.equal(each.result().images, own) for each, own in zip(running, alone, strict=True))
