"""The common part of pipelines of language models: a model and its tokenizer, their loading, and questions to them."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mmspec.api.pipeline import Pipeline
from mmspec.api.stored import Stored, places_of
from mmspec.hosts.devices import dtype_of
from mmspec.hosts.loading import load_model, load_tokenizer


class LanguagePipeline(Pipeline):
    """The base of pipelines that have a language model and its tokenizer; a subclass adds `__call__`."""

    model_cpu_offload_seq = "model"
    makes = "text"

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.register_modules(model=model, tokenizer=tokenizer)

    @classmethod
    def _load(
        cls,
        stored: Stored | None,
        name: str,
        *,
        device: str = "cpu",
        dtype: Any = None,
        torch_dtype: Any = None,
        model: PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        **how: Any,
    ) -> Self:
        """Of a model as transformers stores it, or of a saved pipeline; a live model stays where it is."""
        model_at, tokenizer_at = places_of(stored, name, "model", "tokenizer")
        if model is None:
            model = load_model(model_at, device, dtype_of(dtype, torch_dtype))
        if tokenizer is None:
            tokenizer = load_tokenizer(tokenizer_at)
        pipe = cls(model, tokenizer)
        pipe.register_to_config(_name_or_path=name)
        return pipe.use(**(how if stored is None else stored.method(how)))


def listed(prompt: str | Sequence[str]) -> list[str]:
    """The texts of a call's prompt."""
    prompts = [prompt] if isinstance(prompt, str) else list(prompt) if isinstance(prompt, Iterable) else []
    if not prompts or not all(isinstance(p, str) for p in prompts):
        raise ValueError(f"a prompt is a text, or a list of at least one text, not {prompt!r}")
    return prompts


Message = Mapping[str, Any]  # `{"role": "user", "content": "…"}`; other keys are the template's


def encoded(prompt: Any, tokenizer: Any) -> dict[str, Tensor]:
    """Ids `[batch, prompt]` of the prompts of a call, and their mask; no padding token is needed.

    A prompt is a text or a conversation (a list of messages), or a list of either; conversations need a tokenizer with
    a chat template. Rows are padded on the left with their own first token, so that a penalty of tokens that a row has
    is the same in every batch. Refuses an empty prompt.
    """
    conversations = _conversations(prompt)
    if conversations is None:
        rows = [tokenizer(text)["input_ids"] if text else [] for text in listed(prompt)]
    else:
        rows = [ids_to_answer(conversation, tokenizer) for conversation in conversations]
    empty = [number for number, row in enumerate(rows) if not len(row)]
    if empty:
        raise ValueError(f"prompt {empty[0]} is empty; give some text to continue")
    longest = max(map(len, rows))
    ids = torch.tensor([[row[0]] * (longest - len(row)) + list(row) for row in rows], dtype=torch.int64)
    lengths = torch.tensor([len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": (torch.arange(longest) >= longest - lengths[:, None]).long()}


def asked(prompt: str | Sequence[Message], tokenizer: Any) -> str | Sequence[Message]:
    """A prompt as a model expects it: a text is a question where the tokenizer has a chat template; where it has none,
    a conversation of one question is its text.
    """
    if tokenizer.chat_template is not None:
        return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    alone = not isinstance(prompt, str) and len(prompt) == 1
    return str(prompt[0]["content"]) if alone else prompt  # type: ignore[index]


def refuse_no_template(tokenizer: Any) -> None:
    """Refuse a tokenizer that cannot write conversations."""
    if tokenizer.chat_template is None:
        raise ValueError(
            "the tokenizer has no chat template, so that messages cannot be written as the model knows them: take a "
            "model that was trained for conversations, give a text, or set tokenizer.chat_template"
        )


def _conversations(prompt: Any) -> list[Sequence[Message]] | None:
    """The conversations of a prompt; None if it is no conversation."""
    items = list(prompt) if isinstance(prompt, Iterable) and not isinstance(prompt, str) else []
    if _is_conversation(items):
        return [items]
    return items if items and all(map(_is_conversation, items)) else None


def _is_conversation(value: Any) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(isinstance(message, Mapping) for message in value)


def ids_to_answer(conversation: Sequence[Message], tokenizer: Any) -> list[int]:
    """Ids of a conversation, up to where its answer begins. Templates raise what their author chose."""
    for message in conversation:
        if not isinstance(message.get("role"), str) or "content" not in message:
            raise ValueError(f'a message is {{"role": "user", "content": "…"}}, not {message!r:.80}')
    refuse_no_template(tokenizer)
    text = tokenizer.apply_chat_template(list(conversation), tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@contextmanager
def without_kernel_notices() -> Iterator[None]:
    """Drop transformers' advice to install faster kernels, which are for GPUs; all its other messages are shown."""
    logger = logging.getLogger("transformers.integrations.hub_kernels")

    def other(record: logging.LogRecord) -> bool:
        return "is falling back to its reference PyTorch implementation" not in record.getMessage()

    logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)
