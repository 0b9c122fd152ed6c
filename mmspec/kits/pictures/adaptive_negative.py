"""`AdaptiveNegative`: a judge looks at the picture so far, and names what guidance leads away from, too, from here on.

VLM-guided adaptive negative prompts (arXiv 2510.10715; VL-DNP, 2510.26052). What the judge recognises, such as the most
usual kind of a thing, joins a list for every picture, and guidance leads away from the whole list. Pictures may be
denoised by a pipeline of diffusers (`during`), as in the paper, or drawn code by code: there the judge is asked at
fixed numbers of codes (`steer_every=`), so that under an invariant method the picture depends on the judge and the
seed, and on no draft. A vision-language model may be the judge (`VisionJudge`): its answer is a function of the picture
and the seed alone, since it is decoded greedily, or from noise of its own. Questions, their number and the cleaning of
answers are as released; the released list has an answer of several parts as one entry, and ours has its parts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Self

import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText

from mmspec.api.build import decoder_for
from mmspec.api.prompt_enhancer import answer, lane
from mmspec.core.report import Report
from mmspec.hosts.loading import load_as, load_processor, locate
from mmspec.hosts.remote_code import read_auto
from mmspec.kits.pictures.callbacks import WORDS
from mmspec.registry.numbers import whole

QUESTION = "What is the main object in this image?"
BRIEFLY = "Answer with a single word.\n"
OPENING = re.compile(
    r"^(?:the|an?|it's|(?:it|this|that|there) is|there are|i (?:can )?see|(?:it )?(?:seems|appears) to be"
    r"|(?:it )?looks like|yes,|no,) "
)
"""Beginnings of answers, before they name a thing."""
APART = re.compile(r"[,;]| (?:and|or|&) ")
MARKS = " ,-.:;!?()[]{}\"'"
ARTICLES = frozenset({"a", "an", "the"})
EMPTY = ARTICLES | {
    *("is", "are", "am", "be", "it", "to", "of", "in", "on", "at", "by", "for", "with", "no", "yes"),
    *("neither", "none", "nothing", "null", "unknown", "no dog", "no cat", "no animal"),
}
"""Answers that name nothing, as do single letters and digits."""
LENGTH: Mapping[str, Any] = MappingProxyType({"max_new_tokens": 16, "do_sample": False})


def named(answer: str) -> list[str]:
    """The things that an answer names, without articles: `It is a cat or the dog.` names `cat` and `dog`."""
    said = OPENING.sub("", answer.lower().strip(MARKS))
    parts = ([word.strip(MARKS) for word in part.split()] for part in APART.split(said))
    things = (" ".join(word for word in part if word and word not in ARTICLES) for part in parts)
    return [thing for thing in things if len(thing) > 1 and thing not in EMPTY]


def answers_of(said: Any) -> list[str]:
    """The answers of a judge; refuses something else than words, several of them, or None."""
    several = list(said) if isinstance(said, list | tuple) else [said]
    for each in several:
        if not isinstance(each, str | None):
            raise TypeError(f"the judge returned {type(each).__name__}; it returns words, or None")
    return [each for each in several if each]


class VisionJudge:
    """From a picture to what a vision-language model says about it.

    The model is live, and its processor has a chat template; `question` is what the model is asked about every picture,
    or several questions are, each by itself. `seed` is of its noise, where it samples (`generate={"do_sample": True}`).
    By default it writes 16 tokens, greedily. `method`, `k` and options are those of `mmspec.enable`; the answer does
    not depend on them.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        question: str | Sequence[str] = QUESTION,
        *,
        seed: int = 0,
        method: str = "auto",
        k: int | None = None,
        generate: Mapping[str, Any] = LENGTH,
        **options: Any,
    ) -> None:
        questions = [question] if isinstance(question, str) else list(question)
        if not questions or not all(each.strip() for each in questions):
            raise ValueError("there is an empty question, and nothing to answer")
        if processor.chat_template is None:
            raise ValueError(
                f"this {type(processor).__name__} has no chat template, which says how the model is asked about a "
                "picture: set processor.chat_template, or give AdaptiveNegative a function that asks the model"
            )
        self._model, self._processor, self._seed = model, processor, seed
        self._generate = {**LENGTH, **generate}
        self._asked = [self._templated(BRIEFLY + each) for each in questions]
        self._decoder = decoder_for(model, method, k=k, options=options)
        self.report: Report | None = None  # counts and times of the last answer

    def __call__(self, picture: Image.Image) -> list[str]:
        """The answer to every question."""
        answers, seen = list[str](), blake2b(picture.tobytes()).hexdigest()
        for number, asked in enumerate(self._asked):
            inputs = self._processor(text=[asked], images=[picture], return_tensors="pt")
            inputs = inputs.to(self._model.device, dtype=self._model.dtype)
            seed = lane("judge", self._seed, seen if number == 0 else f"{seen}/{number}")
            new = answer(self._model, self._decoder, inputs, self._generate, seed, self._set_report)
            answers.append(str(self._processor.decode(new, skip_special_tokens=True)))
        return answers

    def _templated(self, question: str) -> str:
        content = [{"type": "image"}, {"type": "text", "text": question}]
        message = [{"role": "user", "content": content}]
        return str(self._processor.apply_chat_template(message, tokenize=False, add_generation_prompt=True))

    def _set_report(self, report: Report) -> None:
        self.report = report


def vision_model(name: str, device: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """The vision-language model of a folder or a hub name, and its processor; refuses one that reads no pictures."""
    config = read_auto(AutoConfig, locate(name))
    if type(config) not in AutoModelForImageTextToText._model_mapping:
        raise ValueError(f"{name!r} is a {config.model_type}, and no model that answers in words about a picture")
    kind = AutoModelForImageTextToText._model_mapping[type(config)]
    return load_as(kind, name, dtype).to(device), load_processor(name)


Judge = Callable[[Image.Image], str | Sequence[str] | None]
"""From a picture, filled in where nothing is drawn yet, to one answer or several about it; None and "": no answer."""


class AdaptiveNegative:
    """A callback for `callback_on_step_end=`, together with `steer_every=`; for pipelines of diffusers, see `during`.

    Args:
        judge: Looks at every picture of the call; a function, or one that asks a vision-language model
            (`from_model`). Articles and the like are left out of its answers, which name one thing or, joined by commas
            or "and", several. What it draws from torch's generator has no effect.
        negative_prompt: Words that stand before those of the judge.
        most: Things that stay on a picture's list, the latest ones; None: all, as far as the model reads.

    Attributes:
        tensor_inputs: The tensors that it asks the pipeline for.
        said: What the judge named, by call and row: `(codes or steps, row, words)`.

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
        question: str | Sequence[str] = QUESTION,
        *,
        negative_prompt: str | None = None,
        most: int | None = None,
        **how: Any,
    ) -> Self:
        """Ask a vision-language model one question or several; arguments as above and in `VisionJudge`.

        Raises:
            ValueError: The processor has no chat template, the question is empty, or the method does not fit the model.
        """
        return cls(VisionJudge(model, processor, question, **how), negative_prompt, most)

    def during(
        self, pipe: Any, every: int = 1, start: int | float = 0, stop: int | float | None = None
    ) -> dict[str, Any]:
        """The arguments of a pipeline of diffusers, so that the judge is asked behind every `every`-th step.

        It sees what the network predicts as the picture, from the first step on. `start` is the first step behind
        which it is asked, `stop` the first one behind which it no longer is, from 0 on or, as numbers with a point
        between 0 and 1, as shares of all steps; its list stays. The pipeline has to show callbacks both halves of its
        prompts, without masks (Stable Diffusion, XL, 3), and its steps must draw no noise.

        Raises:
            ValueError: The callback cannot reach the guidance or the picture, or a number is out of its range.

        Example:
            ```python
            away = mmspec.AdaptiveNegative.from_model(model, processor, "What type of pet is it?")
            picture = pipe("a new kind of pet", guidance_scale=4.5, **away.during(pipe)).images[0]
            ```
        """
        from mmspec.kits.pictures.steered_diffusion import POOLED, SteeredDiffusion, refuse_pipeline

        if whole("every", every) < 1:
            raise ValueError(f"every= counts steps between two questions, at least 1, and not {every}")
        for name, at in (("start", start), ("stop", stop)):
            if at is not None and not 0 <= at <= (1 if isinstance(at, float) else at):
                raise ValueError(f"{name}= is a step, from 0 on, or a share of all steps, 0.0 to 1.0, and not {at}")
        refuse_pipeline(pipe)
        seen = ("latents", "prompt_embeds", *POOLED)
        names = [name for name in seen if name in pipe._callback_tensor_inputs]
        steered = SteeredDiffusion(self.ask, every, start, stop).watching(pipe)
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
        found = self.ask(pictures, step, timestep, " ")  # tokenizers of captions know no commas
        for row, words in enumerate(self._lists):
            while (said := found[row]) is not None and len(words) > 1 and not _reads(pipe, said):
                del words[0]
                found[row] = " ".join([*self._first, *words])
        return {WORDS: found}

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
                answers = self.judge(picture)
            things = [thing for each in answers_of(answers) for thing in named(each)]
            self.said += [(at, row, thing) for thing in things]
            new = [thing for thing in dict.fromkeys(things) if thing not in words]
            words += new
            del words[: 0 if self._most is None else max(0, len(words) - self._most)]
            found.append(between.join([*self._first, *words]) if new else None)
        return found


def _reads(pipe: Any, words: str) -> bool:
    """True if a pipeline of pictures can lead away from words; false if these are too many for it."""
    try:
        pipe.away(words)
    except ValueError:
        return False
    return True
