"""`mmspec.PromptEnhancer`: a language model rewrites the prompt of a pipeline that has none for it, speculatively.

The prompt engineering of Seedream 4.0 (arXiv 2509.20427), whose language model, decoded speculatively, rewrites a
prompt and chooses the picture's aspect. Its model is not public, and neither are its routing and its adaptive thinking:
here any language model does it, and the template says how.
What it draws comes from a lane of its own: the seed of the picture, and the word "enhancer". Neither a generator of the
picture nor torch's own moves, so that switching it on changes the prompt and never the picture's noise.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mmspec.api.build import decoder_for
from mmspec.api.generation import runner
from mmspec.core.decoder import Decoder
from mmspec.core.report import Report
from mmspec.registry.warn import warn


def answer(
    model: Any,
    decoder: Decoder,
    inputs: Mapping[str, Any],
    generate: Mapping[str, Any],
    seed: int,
    on_report: Callable[[Report], None],
) -> Tensor:
    """The ids `[new]` int64 that a model writes behind one prompt, as its `generate` takes it: `input_ids [1, prompt]`
    and what belongs to them.
    """
    run = runner(lambda model: decoder, on_report, noise="philox", seed=seed)
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        ids: Tensor = model.generate(**inputs, **generate, custom_generate=run)
    return ids[0, inputs["input_ids"].shape[1] :]


def lane(purpose: str, seed: int, number: object) -> int:
    """The seed of one answer's noise, below 2^63: a hash of what it is for, a seed, and which answer it is."""
    drawn = blake2b(f"{purpose}/{seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big") >> 1


PLACE = "{prompt}"
TEMPLATE = (
    "Rewrite this prompt for a model that draws pictures. Keep its subject, and add composition, light, colours and "
    f"style. Answer with the new prompt alone.\n\nPrompt: {PLACE}"
)
ASKED = (
    "\n\nBehind the new prompt, on a line of its own, write Aspect: and the ratio of width to height that suits the "
    "picture best, such as 16:9, 1:1 or 2:3."
)
ASPECT = re.compile(
    r"^\W*aspect(?: ratio)?\W+([1-9]\d{0,2})\s*[:x×/]\s*([1-9]\d{0,2})\b.*$", re.IGNORECASE | re.MULTILINE
)
WIDEST, MULTIPLE = 4.0, 64
"""The largest ratio of the sides of a picture, and of what its sides are multiples, in pixels."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Enhanced:
    texts: list[str]  # the new prompts
    # Height and width of the picture that each calls for, in pixels; None where no aspect was asked for, or named
    sizes: list[tuple[int, int] | None]
    seconds: float  # the time that it took
    reports: list[Report]  # counts and times of each


class PromptEnhancer:
    """Rewrites prompts with a language model.

    Args:
        model: The live model.
        tokenizer: Its tokenizer. If it has a chat template, the filled template is a user's message.
        template: What the model is told, with `{prompt}` where the prompt goes.
        method: As in `mmspec.enable`; rewriting repeats much of a prompt, so that lookups help without training.
        drafter: As in `mmspec.enable`.
        k: As in `mmspec.enable`.
        generate: Arguments of the model's `generate`, such as `{"temperature": 0.6}`.
        area: Height and width of the usual picture, in pixels. If given, the model is also asked for the aspect, and
            the picture has about as many pixels in it, on sides that are multiples of 64.
        **options: Options of drafter and rule.

    Raises:
        ValueError: The template has no place for the prompt, or the method does not fit the model.

    Example:
        ```python
        enhancer = mmspec.PromptEnhancer(model, tokenizer, method="suffix")
        pipe = enhancer.before(DiffusionPipeline.from_pretrained(name))
        image = pipe("a cat", generator=torch.Generator().manual_seed(0)).images[0]
        print(pipe.enhanced.texts, pipe.t_enhance, pipe.t_image)
        ```
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        template: str = TEMPLATE,
        *,
        method: str = "auto",
        drafter: Any = None,
        k: int | None = None,
        generate: Mapping[str, Any] = NOTHING,
        area: tuple[int, int] | None = None,
        **options: Any,
    ) -> None:
        if template.count(PLACE) != 1:
            raise ValueError(
                f"a template has {PLACE} once, where the prompt goes; this one has it {template.count(PLACE)} times"
            )
        self._model, self._tokenizer, self._area = model, tokenizer, area
        self._template = template if area is None else template + ASKED
        self._generate = {"max_new_tokens": 256, "do_sample": True, **generate}
        self._decoder = decoder_for(model, method, drafter=drafter, k=k, options=options)

    def __call__(self, prompts: str | Sequence[str], seed: int | Sequence[int] = 0) -> Enhanced:
        """Rewrite prompts, one after the other, so that none depends on the others.

        Args:
            prompts: One prompt, or several.
            seed: One for all (the prompt's number is folded in), or one for each.

        Raises:
            ValueError: A prompt is empty, or there are more or fewer seeds than prompts.
        """
        asked = [prompts] if isinstance(prompts, str) else list(prompts)
        if not asked or not all(isinstance(prompt, str) and prompt.strip() for prompt in asked):
            raise ValueError("there is an empty prompt, and nothing to rewrite")
        seeds = [(seed, number) for number in range(len(asked))] if isinstance(seed, int) else [(s, 0) for s in seed]
        if len(seeds) != len(asked):
            raise ValueError(f"there are {len(asked)} prompts and {len(seeds)} seeds; give one seed, or one for each")
        began, texts, reports = time.perf_counter(), list[str](), list[Report]()
        sizes = list[tuple[int, int] | None]()
        for prompt, (own, number) in zip(asked, seeds, strict=True):
            text, size = self._rewritten(prompt, lane("enhancer", own, number), reports.append), None
            if self._area is not None and (found := ASPECT.search(text)):
                size = shaped(self._area, int(found[1]) / int(found[2]))
                text = ASPECT.sub("", text).strip() or prompt
            texts.append(text)
            sizes.append(size)
        return Enhanced(texts, sizes, time.perf_counter() - began, reports)

    def before(self, pipe: Callable[..., Any]) -> "EnhancedPipeline":
        """A pipeline whose prompts are rewritten first."""
        return EnhancedPipeline(self, pipe)

    def _rewritten(self, prompt: str, seed: int, report: Callable[[Report], None]) -> str:
        inputs = self._inputs(self._template.replace(PLACE, prompt)).to(self._model.device)
        new = answer(self._model, self._decoder, inputs, self._generate, seed, report)
        text = str(self._tokenizer.decode(new, skip_special_tokens=True)).strip()
        if not text:
            warn("the enhancer wrote nothing, and the prompt stays as it is")
        return text or prompt

    def _inputs(self, text: str) -> Any:
        if self._tokenizer.chat_template is None:
            return self._tokenizer(text, return_tensors="pt")
        message = [{"role": "user", "content": text}]
        return self._tokenizer.apply_chat_template(
            message, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )


def shaped(area: tuple[int, int], aspect: float) -> tuple[int, int]:
    """Height and width of about as many pixels as `area`, of an aspect, width to height, of at most 4 or at least ¼."""
    wide = min(max(aspect, 1 / WIDEST), WIDEST)
    pixels = area[0] * area[1]
    height, width = (
        max(1, round(side / MULTIPLE)) * MULTIPLE for side in ((pixels / wide) ** 0.5, (pixels * wide) ** 0.5)
    )
    return height, width


class EnhancedPipeline:
    """A pipeline behind an enhancer.

    Its first argument, or `prompt=`, is what is rewritten. Where the enhancer has an area and the call names no
    `height=` or `width=`, all pictures have the size that the first new prompt calls for.

    Attributes:
        enhanced: What the last call made of its prompts; None before the first.
        t_enhance: Seconds that rewriting took in the last call.
        t_image: Seconds that the pipeline took behind it.
    """

    def __init__(self, enhancer: PromptEnhancer, pipe: Callable[..., Any]) -> None:
        self.enhancer, self.pipe = enhancer, pipe
        self.enhanced: Enhanced | None = None
        self.t_enhance = self.t_image = 0.0

    def __call__(self, prompt: str | Sequence[str], *args: Any, generator: Any = None, **kwargs: Any) -> Any:
        """The pipeline's call with other prompts; its result.

        The initial seeds of `generator`, one or one for each prompt, are the enhancer's; without one, the seed of
        torch's own generator is.
        """
        self.enhanced = self.enhancer(prompt, seeds_of(generator))
        self.t_enhance, began = self.enhanced.seconds, time.perf_counter()
        new = self.enhanced.texts[0] if isinstance(prompt, str) else self.enhanced.texts
        size = self.enhanced.sizes[0]
        given = kwargs if generator is None else {**kwargs, "generator": generator}
        if size is not None and not {"height", "width"} & kwargs.keys():
            given = {**given, "height": size[0], "width": size[1]}
        drawn = self.pipe(new, *args, **given)
        self.t_image = time.perf_counter() - began
        return drawn


def seeds_of(generator: Any) -> int | list[int]:
    """The initial seeds of a pipeline's generators; nothing is drawn from them."""
    if generator is None:
        return torch.initial_seed()
    if isinstance(generator, torch.Generator):
        return generator.initial_seed()
    return [each.initial_seed() for each in generator]
