"""The models that are served: language models with their decoders, and pipelines that draw. All are loaded first.

Nothing is loaded, or let go, on a request's word, as the manager of `transformers serve` does.
"""

import inspect
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from transformers.cli.serving.model_manager import ModelManager

import mmspec
from mmspec.api.build import decoder_for
from mmspec.api.enable import learner_of
from mmspec.api.pipeline import Pipeline
from mmspec.api.stored import Stored, pipeline_of
from mmspec.core.decoder import Decoder
from mmspec.core.learning import Learner, Learning
from mmspec.core.sharing import SharingDecoder, shareable
from mmspec.core.threads import compute_with
from mmspec.hosts.devices import dtype_of
from mmspec.hosts.loading import load_model, load_processor
from mmspec.registry.suggest import unknown
from mmspec.registry.warn import warn
from mmspec.serving.request import UnknownModelError

TOGETHER = 8
"""Requests that share passes, where nobody names a number."""


@dataclass(frozen=True, kw_only=True)
class Computed:
    """A model that is served, and the threads of its calls."""

    rows: int = 1  # most calls at a time, which share passes
    thread: ThreadPoolExecutor | None = None  # the one that computes for the model; None: each call's own

    def workers(self) -> ThreadPoolExecutor:
        """The threads of the calls."""
        if self.thread is None:
            return ThreadPoolExecutor(self.rows)
        return self.thread if self.rows == 1 else ThreadPoolExecutor(self.rows, initializer=compute_with, initargs=(1,))


def computing() -> ThreadPoolExecutor:
    """A thread that computes for a model. Nothing of the model is computed in the caller's, which would get helpers of
    its own (`mmspec.core.threads`).
    """
    return ThreadPoolExecutor(1, initializer=compute_with, initargs=(torch.get_num_threads(),))


@dataclass(frozen=True)
class Language(Computed):
    """A language model that is served."""

    model: Any  # the live model; its `generate` is transformers' own
    processor: Any  # its tokenizer
    decoder: Decoder  # its decoder, which all calls share
    learner: Learner | None = None  # learns between calls; None: nothing does

    @cached_property
    def table(self) -> Any:
        """The tokens of the model in llguidance's form, for grammars; the text ends with those of its configuration."""
        import llguidance.hf

        vocab = max(self.model.config.get_text_config(decoder=True).vocab_size, len(self.processor))
        return llguidance.hf.from_tokenizer(self.processor, vocab, self.model.generation_config.eos_token_id)

    @classmethod
    def load(
        cls,
        name: str,
        device: str,
        dtype: str | None,
        template: str | None,
        rows: int | None,
        *,
        learn: bool = False,
        **how: Any,
    ) -> "Language":
        """Load a causal language model, in float32 unless a dtype is named; a chat template is for a model that has
        none. With `learn`, its drafter learns from the answers while no call runs. The other arguments go to
        `decoder_for`, and `rows` to `together`.
        """
        processor = load_processor(name)
        if template is not None:
            processor.chat_template = template
        thread = computing()
        model = thread.submit(load_model, name, device, dtype_of(dtype)).result()
        decoder = thread.submit(partial(decoder_for, model, **how)).result()
        learner = learner_of(decoder, Learning(idle=True) if learn else None)
        rows = together(decoder, rows)
        if rows > 1:
            decoder = SharingDecoder(decoder, rows, owned=True, thread=thread)
        return cls(model, processor, decoder, learner, rows=rows, thread=thread)


@dataclass(frozen=True)
class Drawing(Computed):
    """A pipeline that draws, and is served."""

    pipe: Pipeline

    @classmethod
    def load(cls, name: str, rows: int | None, **how: Any) -> "Drawing":
        """Load a pipeline; arguments as in `mmspec.Pipeline.from_pretrained`, and `rows` as in `together`."""
        thread = computing()
        pipe: Pipeline = thread.submit(partial(mmspec.Pipeline.from_pretrained, name, **how)).result()
        if "num_images_per_prompt" not in inspect.signature(type(pipe).__call__).parameters:
            raise ValueError(
                f"{name} is a {type(pipe).__name__}; language models and pipelines that draw can be served"
            )
        pipe.set_progress_bar_config(disable=True)  # it would stand on the server's terminal
        rows = together(pipe.decoder(), rows)
        if rows > 1:
            pipe.share_passes(rows, thread, owned=True)
        return cls(pipe, rows=rows, thread=thread)


def together(decoder: Decoder, rows: int | None) -> int:
    """The calls of a decoder that share passes at a time; where no number is named, as many as pay.

    Recorded rounds are of one call, and on a GPU they are worth more than company to small models: there it is one call
    at a time, unless a number is named.
    """
    if rows == 1 or (rows is None and decoder.captures.way is not None):
        return 1
    try:
        shareable(decoder)
    except ValueError as error:
        if rows is not None:
            raise
        warn(f"requests are answered one at a time: {error}")
        return 1
    return rows or TOGETHER


Served = Language | Drawing


def load(
    name: str,
    device: str,
    dtype: str | None,
    template: str | None,
    options: Mapping[str, Any],
    *,
    rows: int | None = None,
    learn: bool = False,
    **how: Any,
) -> Served:
    """Load a language model, or a pipeline that draws; arguments as in `Language.load`."""
    if pipeline_of(Stored.named(name), name) is None:
        return Language.load(name, device, dtype, template, rows, learn=learn, options=options, **how)
    if learn:
        raise ValueError(f"--learn is for drafters of language models, and {name} draws")
    return Drawing.load(name, rows, device=device, dtype=dtype, **how, **options)


class Models(ModelManager):
    """transformers' manager, with models that are loaded; a request that names none gets the first that does what it
    asks.
    """

    def __init__(self, served: Mapping[str, Served]) -> None:
        super().__init__(device="cpu", model_timeout=-1)  # it loads nothing, so its device is no one's
        self._served = dict(served)
        self._since = int(time.time())

    def named(self, name: str | None, kind: type[Any]) -> str:
        """The name of the model that a request means, of a `kind`: `Language`, or `Drawing`."""
        fitting = [name for name, served in self._served.items() if isinstance(served, kind)]
        if name in fitting or (name is None and fitting):
            return name or fitting[0]
        if name in self._served:
            place = "/v1/images/generations" if kind is Language else "/v1/completions or /v1/chat/completions"
            raise UnknownModelError(f"the model {name!r} does something else: ask it at {place}")
        if not fitting:
            does = "writes text" if kind is Language else "draws pictures"
            raise UnknownModelError(f"no model here {does}; there is {', '.join(self._served)}")
        raise UnknownModelError(unknown("model served here", name, fitting))

    def languages(self) -> dict[str, Language]:
        return {name: served for name, served in self._served.items() if isinstance(served, Language)}

    def drawings(self) -> dict[str, Drawing]:
        return {name: served for name, served in self._served.items() if isinstance(served, Drawing)}

    @staticmethod
    def process_model_name(model_id: str) -> str:
        """The name itself, without a revision: answers name the model as requests do."""
        return model_id

    def load_model_and_processor(self, name: str, *_: Any, **__: Any) -> tuple[Any, Any]:
        served = self.languages()[name]
        return served.model, served.processor

    def get_gen_models(self, cache_dir: str | None = None) -> list[dict[str, Any]]:
        """The list of `/v1/models`: what is served, and nothing about other models on this machine."""
        return [self.listed(name) for name in self._served]

    def listed(self, name: str) -> dict[str, Any]:
        """The entry of a model in that list."""
        if name not in self._served:
            raise UnknownModelError(unknown("model served here", name, self._served))
        return {"id": name, "object": "model", "created": self._since, "owned_by": "mmspec"}

    def shutdown(self) -> None:
        """Let no lesson begin; what was loaded lives as long as the server."""
        for language in self.languages().values():
            if language.learner is not None:
                language.learner.rest(lessons=False)
