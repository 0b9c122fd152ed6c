"""`AdaptiveNegative`: a judge looks at the picture so far, and names what guidance leads away from next.

VLM-guided adaptive negative prompts (arXiv 2510.10715; VL-DNP, 2510.26052), for pictures that are drawn code by code.
It is asked at fixed numbers of codes (`steer_every=`), so that under an invariant method the picture depends on the
judge and the seed, and on no draft.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image

from mmspec.kits.pictures.callbacks import NULL, NULL_MASK
from mmspec.kits.pictures.conditions import replaced

Judge = Callable[[Image.Image], str | None]
"""From a picture, filled in where nothing is drawn yet, to words for what should not be there; None: as before."""


class AdaptiveNegative:
    """A callback for `callback_on_step_end=`, together with `steer_every=`.

    Args:
        judge: Looks at every picture of the call; a function, or one that asks a vision-language model. What it draws
            from torch's generator has no effect.

    Attributes:
        tensor_inputs: The tensors that it asks the pipeline for.
        said: What the judge said, by call and row: `(codes, row, words)`.

    Example:
        ```python
        away = mmspec.AdaptiveNegative(lambda picture: "red" if reddish(picture) else None)
        pipe("heart", guidance_scale=3.0, callback_on_step_end=away, steer_every=32, seed=0)
        ```
    """

    tensor_inputs: Sequence[str] = ("preview", NULL, NULL_MASK)

    def __init__(self, judge: Judge) -> None:
        if not callable(judge):
            raise TypeError(f"a judge is a function of a picture, not {type(judge).__name__}")
        self.judge = judge
        self.said: list[tuple[int, int, str]] = []

    def __call__(self, pipe: Any, step: int, timestep: int, tensors: dict[str, Any]) -> dict[str, Any]:
        """Ask the judge about every picture; the negative prompts as they are to be from here on.

        Raises:
            ValueError: The call has no guidance, or the model does not know a word.
            TypeError: The judge returned something else than words or None.
        """
        null, mask = tensors[NULL], tensors[NULL_MASK]
        if null is None:
            raise ValueError("without guidance nothing is led away from: guidance_scale > 1")
        pictures = VaeImageProcessor().postprocess(tensors["preview"].detach(), "pil")
        for row, picture in enumerate(pictures):
            with torch.random.fork_rng([]):
                words = self.judge(picture)
            if words is None:
                continue
            if not isinstance(words, str):
                raise TypeError(f"the judge returned {type(words).__name__}; it returns words, or None")
            self.said.append((timestep, row, words))
            null, mask = replaced(null, mask, row, pipe.encode_prompt(words, guided=False))
        return {NULL: null, NULL_MASK: mask}
