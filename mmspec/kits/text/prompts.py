"""What a text pipeline is asked, as ids: texts to continue, or conversations to answer."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.kits.text.language import listed

Message = Mapping[str, Any]
"""`{"role": "user", "content": "…"}`; other keys are the template's."""


def encoded(prompt: Any, tokenizer: Any) -> dict[str, Tensor]:
    """The prompts of a call.

    Args:
        prompt: A text or a conversation (a list of messages), or a list of either.
        tokenizer: The live tokenizer; for conversations, one with a chat template.

    Returns:
        Ids `[batch, prompt]` and their mask; no padding token is needed. Rows are padded on the left with their own
        first token, so that a penalty of tokens that a row has is the same in every batch.

    Raises:
        ValueError: A prompt is empty, is neither a text nor a conversation, or there is no template for conversations.
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


def refuse_no_template(tokenizer: Any) -> None:
    """Refuse a tokenizer that cannot write conversations.

    Raises:
        ValueError: It has no chat template.
    """
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
    """Ids of a conversation, up to where its answer begins.

    Raises:
        ValueError: A message is none, or the tokenizer has no chat template. Templates raise what their author chose.
    """
    for message in conversation:
        if not isinstance(message.get("role"), str) or "content" not in message:
            raise ValueError(f'a message is {{"role": "user", "content": "…"}}, not {message!r:.80}')
    refuse_no_template(tokenizer)
    text = tokenizer.apply_chat_template(list(conversation), tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
