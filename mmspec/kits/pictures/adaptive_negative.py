"""`AdaptiveNegative`: a judge looks at the picture so far, and names what guidance leads away from next.

VLM-guided adaptive negative prompts (arXiv 2510.10715; VL-DNP, 2510.26052), for pictures that are drawn code by code.
It is asked at fixed numbers of codes (`steer_every=`), so that under an invariant method the picture depends on the
judge and the seed, and on no draft.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image

from mmspec.kits.pictures.callbacks import WORDS
from mmspec.kits.pictures.vision_judge import QUESTION, VisionJudge

Judge = Callable[[Image.Image], str | None]
"""From a picture, filled in where nothing is drawn yet, to words for what should not be there; no words: as before."""


class AdaptiveNegative:
    """A callback for `callback_on_step_end=`, together with `steer_every=`.

    Args:
        judge: Looks at every picture of the call; a function, or one that asks a vision-language model
            (`from_model`). What it draws from torch's generator has no effect.

    Attributes:
        tensor_inputs: The tensors that it asks the pipeline for.
        said: What the judge said, by call and row: `(codes, row, words)`.

    Example:
        ```python
        away = mmspec.AdaptiveNegative(lambda picture: "red" if reddish(picture) else None)
        pipe("large circle", guidance_scale=3.0, callback_on_step_end=away, steer_every=32, seed=0)
        ```
    """

    tensor_inputs: Sequence[str] = ("preview",)

    def __init__(self, judge: Judge) -> None:
        if not callable(judge):
            raise TypeError(f"a judge is a function of a picture, not {type(judge).__name__}")
        self.judge = judge
        self.said: list[tuple[int, int, str]] = []

    @classmethod
    def from_model(cls, model: Any, processor: Any, question: str = QUESTION, **how: Any) -> Self:
        """Ask a vision-language model; arguments as in `VisionJudge`.

        Raises:
            ValueError: The processor has no chat template, the question is empty, or the method does not fit the model.
        """
        return cls(VisionJudge(model, processor, question, **how))

    def __call__(self, pipe: Any, step: int, timestep: int, tensors: dict[str, Any]) -> dict[str, Any]:
        """Ask the judge about every picture; the negative prompts as they are to be from here on.

        Raises:
            ValueError: The call has no guidance, or the model does not know a word.
            TypeError: The judge returned something else than words or None.
        """
        if pipe.guidance_scale <= 1:
            raise ValueError("without guidance nothing is led away from: guidance_scale > 1")
        pictures = VaeImageProcessor().postprocess(tensors["preview"].detach(), "pil")
        found = list[str | None]()
        for row, picture in enumerate(pictures):
            with torch.random.fork_rng([]):
                words = self.judge(picture)
            if not isinstance(words, str | None):
                raise TypeError(f"the judge returned {type(words).__name__}; it returns words, or None")
            found.append(words if words and words.strip() else None)
            if found[-1] is not None:
                self.said.append((timestep, row, found[-1]))
        return {WORDS: found}
