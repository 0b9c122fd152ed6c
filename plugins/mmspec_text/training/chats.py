"""Conversations in the form in which the target is served, and which of their tokens an answer is.

Every answer of a conversation is a row of its own, rendered as the template renders the messages up to it: a template
that leaves out the thoughts of earlier answers leaves them out there, and keeps them in the answer that is learnt. The
answer begins where the template asks for it, and ends with the token that ends it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mmspec.registry.printable import shown
from mmspec_text.training.texts import Answer

ASSISTANT = "assistant"
MARK = "the-question-of-a-user"
"""Stands for a question, to see what a template writes before one."""


@dataclass(frozen=True)
class Chat:
    """The form in which a target is served: its tokenizer's chat template."""

    tokenizer: PreTrainedTokenizerBase
    variables: Mapping[str, Any] = field(default_factory=dict)  # values of the template's own variables

    def __post_init__(self) -> None:
        template, reserved = self.tokenizer.chat_template, signature(PreTrainedTokenizerBase.apply_chat_template)
        for name in self.variables:
            if template is None or name in reserved.parameters or name not in str(template):
                raise ValueError(f"the target's chat template has no variable {name!r} that can be set (--template)")

    def answers_in(self, line: Mapping[str, Any], ends: Tensor, where: str) -> list[Answer]:
        """The answers of a conversation, one row each.

        The line has `messages`, each with a `role` and its `content`; and `tools`, if the template is given some.
        `ends` are the ids that end an answer.
        """
        messages, tools = line["messages"], {"tools": line["tools"]} if line.get("tools") else {}
        if self.tokenizer.chat_template is None:
            raise ValueError(f"{where} has messages, and the target's tokenizer has no chat template; give texts")
        for number, message in enumerate(messages, 1):
            _refuse_odd(message, f"message {number} in {where}")
        turns = [turn for turn, message in enumerate(messages) if turn and message["role"] == ASSISTANT]
        if not turns:
            raise ValueError(
                f"{where} has no answer: a drafter learns the messages of the role {ASSISTANT!r}, each behind another "
                "one"
            )
        return [self._answer(messages[: turn + 1], ends, where, tools) for turn in turns]

    def asked(self, messages: Sequence[Mapping[str, Any]], where: str) -> Tensor:
        """The prompt for an answer to these messages, `[unit]` int64; errors as in `answers_in`."""
        return self._ids(self._rendered(messages, where, prompt=True))

    def opening(self) -> Tensor:
        """The template's tokens before a user's first question, `[unit]` int64."""
        question = [{"role": "user", "content": MARK}]
        before, mark, _ = self._rendered(question, "the beginning of a user's turn").partition(MARK)
        if not mark or not before:
            raise ValueError("the target's chat template writes nothing before a user's question: give conversations")
        return self._ids(before)

    def _answer(self, messages: Sequence[Any], ends: Tensor, where: str, tools: Mapping[str, Any]) -> Answer:
        """The row of the last message."""
        before = self._rendered(messages[:-1], where, **tools)
        prompt = self._rendered(messages[:-1], where, prompt=True, **tools)
        whole = self._rendered(messages, where, **tools)
        begins = next((len(text) for text in (prompt, before) if whole.startswith(text)), None)
        if begins is None:
            raise ValueError(
                f"{where}: the target's chat template writes what is before message {len(messages)} in another way "
                "once that is there, so that it is not known which tokens are the answer"
            )
        ids, given = self._ids(whole), self._ids(whole[:begins])
        most = min(len(ids), len(given))
        first = int((ids[:most] == given[:most]).cumprod(0).sum())  # a token across the border is the answer's
        stops = torch.isin(ids[first:], ends).nonzero()[:, 0]
        ids = ids if not len(stops) else ids[: first + int(stops[-1]) + 1]  # behind it is what only templates write
        if not first or first == len(ids):
            raise ValueError(
                f"{where}: the target's chat template writes nothing of message {len(messages)}, or all of it"
            )
        return Answer(ids, first)

    def _rendered(self, messages: Sequence[Mapping[str, Any]], where: str, prompt: bool = False, **tools: Any) -> str:
        """Messages in the target's form; with the beginning of an answer, if `prompt`."""
        said: Any = [dict(message) for message in messages]
        how: dict[str, Any] = {"tokenize": False, "add_generation_prompt": prompt, **self.variables, **tools}
        try:
            return str(self.tokenizer.apply_chat_template(said, **how))
        except Exception as error:  # templates raise whatever their author chose
            why = f"{where}: the target's chat template does not take these messages: {shown(error)}"
            raise ValueError(why) from error

    def _ids(self, text: str) -> Tensor:
        """The ids of a text in which the template has written all special tokens."""
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return torch.tensor(ids, dtype=torch.int64)


def _refuse_odd(message: Any, where: str) -> None:
    """Refuse what is no message in words."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError(f'{where} has no "role" (a string)')
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    if content is None and message.get("tool_calls"):
        return
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        raise ValueError(f'{where} has a "content" that is no text')
