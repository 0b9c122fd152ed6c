"""`AdaptiveNegative`: a judge looks at the picture so far, and names what guidance leads away from, too, from here on.

VLM-guided adaptive negative prompts (arXiv 2510.10715; VL-DNP, 2510.26052). What the judge recognises, such as the most
usual kind of a thing, joins a list for every picture, and guidance leads away from the whole list. Pictures may be
denoised by a pipeline of diffusers (`during`), as in the paper, or drawn code by code: there the judge is asked at
fixed numbers of codes (`steer_every=`), so that under an invariant method the picture depends on the judge and the
seed, and on no draft. A vision-language model may be the judge (`VisionJudge`): its answer is a function of the picture
and the seed alone, since it is decoded greedily, or from noise of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Self

import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image

from mmspec.api.build import decoder_for
from mmspec.api.prompt_enhancer import answer, lane
from mmspec.core.report import Report
from mmspec.kits.pictures.callbacks import WORDS
from mmspec.registry.numbers import whole

QUESTION = (
    "This picture is being drawn. Name in one to three words the most conventional thing that it shows, or may become. "
    "If nothing can be recognised yet, answer: nothing"
)
NOTHING = frozenset({"", "nothing", "none", "no", "null"})  # answers that name nothing
LENGTH: Mapping[str, Any] = MappingProxyType({"max_new_tokens": 16, "do_sample": False})


class VisionJudge:
    """From a picture to what a vision-language model says about it.

    The model is live, and its processor has a chat template; `question` is what the model is asked about every picture,
    and `seed` is of its noise, where it samples (`generate={"do_sample": True}`). By default it writes 16 tokens,
    greedily. `method`, `k` and options are those of `mmspec.enable`; the answer does not depend on them.
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
        self.report: Report | None = None  # counts and times of the last answer

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


Judge = Callable[[Image.Image], str | None]
"""From a picture, filled in where nothing is drawn yet, to words for what should not be there; no words: as before."""


class AdaptiveNegative:
    """A callback for `callback_on_step_end=`, together with `steer_every=`; for pipelines of diffusers, see `during`.

    Args:
        judge: Looks at every picture of the call; a function, or one that asks a vision-language model
            (`from_model`). What it draws from torch's generator has no effect.
        negative_prompt: Words that stand before those of the judge.
        most: Answers that stay on a picture's list, the latest ones; None: all, as far as the model reads.

    Attributes:
        tensor_inputs: The tensors that it asks the pipeline for.
        said: What the judge said, by call and row: `(codes or steps, row, words)`.

    Example:
        ```python
        away = mmspec.AdaptiveNegative(lambda picture: "red" if reddish(picture) else None)
        pipe("large circle", guidance_scale=3.0, callback_on_step_end=away, steer_every=32, seed=0)
        ```
    """

    tensor_inputs: Sequence[str] = ("preview",)

    def __init__(self, judge: Judge, negative_prompt: str | None = None, most: int | None = None) -> None:
        if not callable(judge):
            raise TypeError(f"a judge is a function of a picture, not {type(judge).__name__}")
        self.judge = judge
        self.said: list[tuple[int, int, str]] = []
        self._first = [negative_prompt] if negative_prompt else []
        self._most = None if most is None else whole("most", most)
        self._step, self._lists = -1, list[list[str]]()

    @classmethod
    def from_model(
        cls,
        model: Any,
        processor: Any,
        question: str = QUESTION,
        *,
        negative_prompt: str | None = None,
        most: int | None = None,
        **how: Any,
    ) -> Self:
        """Ask a vision-language model; arguments as above and in `VisionJudge`.

        Raises:
            ValueError: The processor has no chat template, the question is empty, or the method does not fit the model.
        """
        return cls(VisionJudge(model, processor, question, **how), negative_prompt, most)

    def during(self, pipe: Any, every: int = 1) -> dict[str, Any]:
        """The arguments of a pipeline of diffusers, so that the judge is asked behind every `every`-th step.

        It sees what the network predicts as the picture, from the second step on. The pipeline has to show callbacks
        both halves of its prompts, without masks (Stable Diffusion, XL, 3), and its steps must draw no noise.

        Raises:
            ValueError: The callback cannot reach the guidance or the picture, or `every` is below 1.

        Example:
            ```python
            away = mmspec.AdaptiveNegative.from_model(model, processor, "What kind of pet is this? One or two words.")
            picture = pipe("a new kind of pet", guidance_scale=5.0, **away.during(pipe)).images[0]
            ```
        """
        from mmspec.kits.pictures.steered_diffusion import POOLED, SteeredDiffusion, refuse_pipeline

        if whole("every", every) < 1:
            raise ValueError(f"every= counts steps between two questions, at least 1, and not {every}")
        refuse_pipeline(pipe)
        seen = ("latents", "prompt_embeds", *POOLED)
        names = [name for name in seen if name in pipe._callback_tensor_inputs]
        steered = SteeredDiffusion(self.ask, every)
        return {"callback_on_step_end": steered, "callback_on_step_end_tensor_inputs": names}

    def __call__(self, pipe: Any, step: int, timestep: int, tensors: dict[str, Any]) -> dict[str, Any]:
        """Ask the judge about every picture; the negative prompts as they are to be from here on.

        Raises:
            ValueError: The call has no guidance, or the model does not know a word.
            TypeError: The judge returned something else than words or None.
        """
        if pipe.guidance_scale <= 1:
            raise ValueError("without guidance nothing is led away from: guidance_scale > 1")
        pictures = VaeImageProcessor().postprocess(tensors["preview"].detach(), "pil")
        return {WORDS: self.ask(pictures, step, timestep, " ")}  # tokenizers of captions know no commas

    def ask(self, pictures: Sequence[Image.Image], step: int, at: int, between: str) -> list[str | None]:
        """Ask the judge about every row's picture; a step that is not behind the last one begins another call.

        `said` tells `at` as codes or steps.

        Returns:
            All words for every row, with `between` between two answers, or None where there are no new ones.

        Raises:
            TypeError: The judge returned something else than words or None.
        """
        if step <= self._step or len(pictures) != len(self._lists):
            self._lists = [[] for _ in pictures]
        self._step, found = step, list[str | None]()
        for row, (picture, words) in enumerate(zip(pictures, self._lists, strict=True)):
            with torch.random.fork_rng([]):
                named = self.judge(picture)
            if not isinstance(named, str | None):
                raise TypeError(f"the judge returned {type(named).__name__}; it returns words, or None")
            named = (named or "").strip()
            if named:
                self.said.append((at, row, named))
            new = bool(named) and named.lower() not in map(str.lower, words)
            if new:
                words.append(named)
                del words[: 0 if self._most is None else max(0, len(words) - self._most)]
            found.append(between.join([*self._first, *words]) if new else None)
        return found
