"""The promise on the model that we ship: the same picture for the same seed, whatever was drafted, in any batch."""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.testing.same_units import assert_same_units, lost_by
from mmspec_image.bench.settings import CAPTIONS
from mmspec_image.drafters.jacobi import ImageJacobi, JacobiOptions
from mmspec_image.pipeline import TextToImagePipeline
from mmspec_image.targets.llamagen import LlamaGenTarget

INITS = ("random", "left", "above", "predict-2d", "previous-image")
WINDOWS = (8, 16, 32, 64)
GUIDED = Warp(guidance=3.0)


@pytest.fixture(scope="module")
def pipe() -> TextToImagePipeline:
    return TextToImagePipeline.from_pretrained("mmspec/emoji")


class Calls:
    """Calls over a number of captions, a fixed number at a time; plain decoding ran once."""

    def __init__(self, pipe, pictures: int, batch: int) -> None:
        self.target, cells = LlamaGenTarget(pipe.transformer), pipe.transformer.cells
        seeds = range(100, 100 + pictures)
        self.calls = []
        for first in range(0, pictures, batch):
            prompt = pipe.encode_prompt(list(CAPTIONS[first : first + batch]))
            call = {"limit": cells, "seed": list(seeds[first : first + batch]), "warp": GUIDED}
            self.calls.append((prompt, call, Decoder(self.target).generate(prompt, **call).units))

    def compare(self, init: str, window: int) -> float:
        """Every picture against plain decoding's; returns the acceptance length."""
        decoder = Decoder(self.target, ImageJacobi(JacobiOptions(init)), k=window)
        emitted = rounds = 0
        for prompt, call, plain in self.calls:
            output = decoder.generate(prompt, **call)
            assert_same_units(output.units, plain, lost_by(self.target, prompt, **call))
            emitted += output.report.emitted - output.report.rows
            rounds += output.report.row_rounds
        return emitted / rounds


def test_two_pictures(pipe):
    """The second one is drafted from the first."""
    assert Calls(pipe, 2, batch=1).compare("previous-image", 16) > 2


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 8])
def test_many_pictures(pipe, batch):
    calls = Calls(pipe, 32, batch)
    for init in INITS:
        for window in WINDOWS:
            length = calls.compare(init, window)
            print(f"batch {batch}, {init}, window {window}: acceptance length {length:.2f}")
            assert length > 1.5


def test_pictures_show_what_was_asked_for(pipe):
    """Under guidance, a picture is nearer to its own caption than to the others'."""
    from mmspec import shipped
    from mmspec_image.quality import load_quality

    quality = load_quality(shipped.asset("emoji"))
    captions = ["red heart", "flag japan"]
    pictures = pipe(captions, seed=[1, 2], guidance_scale=3.0, output_type="pt").images * 2 - 1
    words = pipe.tokenizer(captions, padding="max_length", return_tensors="pt")
    own = quality.caption_score(pictures, words["input_ids"], words["attention_mask"])
    swapped = quality.caption_score(pictures.flip(0), words["input_ids"], words["attention_mask"])
    assert torch.tensor(own - swapped) > 0.1
