"""A vision-language model as the judge of `AdaptiveNegative`: it is shown the picture so far, and answers in words.

Its answer is a function of the picture and the seed alone: it is decoded greedily, or from noise of its own.
"""

from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

from PIL import Image

from mmspec.api.build import decoder_for
from mmspec.api.prompt_enhancer import answer, lane
from mmspec.core.report import Report

QUESTION = (
    "This picture is being drawn. Name in one to three words what should not be in it, such as a wrong colour or a "
    "needless thing. If nothing is wrong, answer: nothing"
)
NOTHING = frozenset({"", "nothing", "none", "no", "null"})
"""Answers that name nothing."""
LENGTH: Mapping[str, Any] = MappingProxyType({"max_new_tokens": 16, "do_sample": False})


class VisionJudge:
    """From a picture to what a vision-language model says about it.

    Args:
        model: The live model.
        processor: Its processor, with a chat template.
        question: What the model is asked about every picture.
        seed: Of its noise, where it samples (`generate={"do_sample": True}`).
        method: As in `mmspec.enable`; the answer does not depend on it.
        k: As in `mmspec.enable`.
        generate: Arguments of the model's `generate`; default: 16 tokens, greedily.
        **options: Options of drafter and rule.

    Attributes:
        report: Counts and times of the last answer; None before the first.

    Raises:
        ValueError: The processor has no chat template, the question is empty, or the method does not fit the model.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        question: str = QUESTION,
        *,
        seed: int = 0,
        method: str = "auto",
        k: int | None = None,
        generate: Mapping[str, Any] = LENGTH,
        **options: Any,
    ) -> None:
        if not question.strip():
            raise ValueError("there is an empty question, and nothing to answer")
        if processor.chat_template is None:
            raise ValueError(
                f"this {type(processor).__name__} has no chat template, which says how the model is asked about a "
                "picture: set processor.chat_template, or give AdaptiveNegative a function that asks the model"
            )
        self._model, self._processor, self._seed = model, processor, seed
        self._generate = {**LENGTH, **generate}
        content = ({"type": "image"}, {"type": "text", "text": question})
        self._asked: str = processor.apply_chat_template(
            [{"role": "user", "content": list(content)}], tokenize=False, add_generation_prompt=True
        )
        self._decoder = decoder_for(model, method, k=k, options=options)
        self.report: Report | None = None

    def __call__(self, picture: Image.Image) -> str | None:
        """Words for what should not be in a picture; None: nothing was named."""
        inputs = self._processor(text=[self._asked], images=[picture], return_tensors="pt")
        inputs = inputs.to(self._model.device, dtype=self._model.dtype)
        seed = lane("judge", self._seed, blake2b(picture.tobytes()).hexdigest())
        new = answer(self._model, self._decoder, inputs, self._generate, seed, self._set_report)
        words = str(self._processor.decode(new, skip_special_tokens=True)).strip()
        return None if words.strip(" .!\"'").lower() in NOTHING else words

    def _set_report(self, report: Report) -> None:
        self.report = report
