"""The fields of a request for text: their types and ranges, checked before anything else reads them.

What would change the answer and is not supported is refused, never ignored; a value that changes nothing is accepted.
"""

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from transformers import PreTrainedTokenizerBase

from mmspec.api.refusals import refuse_settings
from mmspec.registry.options import build
from mmspec.registry.printable import shown
from mmspec.registry.suggest import unknown
from mmspec.serving.limits import refuse_stops
from mmspec.serving.request import MOST

Temperature = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=MOST)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Top = Annotated[int, Field(ge=0, le=20)]

HINTS = frozenset((
    "user", "metadata", "store", "service_tier", "parallel_tool_calls", "reasoning_effort", "verbosity",
    "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
))  # fmt: skip
"""Fields of OpenAI's that are hints or book-keeping: accepted, without effect."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "tool_choice": ("auto", "none"),
    "modalities": (["text"],),
    "audio": (),
    "functions": (),
    "function_call": (),
    "prediction": (),
    "web_search_options": (),
    "suffix": (),
}
"""Fields of OpenAI's that are not supported, with the values that ask for nothing."""
SETTINGS = frozenset((
    "do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff",
    "repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "sequence_bias", "suppress_tokens",
    "begin_suppress_tokens", "renormalize_logits", "eos_token_id", "min_new_tokens", "max_new_tokens",
))  # fmt: skip
"""Settings that `generation_config` may have."""


@dataclass(frozen=True)
class Text:
    """Fields of every request for text, as OpenAI has them; from `top_k` on vLLM's, and transformers'
    `generation_config`.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: dict[Literal["include_usage", "include_obfuscation"], bool] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    seed: Seed | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] | None = None
    response_format: dict[str, Any] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    generation_config: str | None = None


@dataclass(frozen=True)
class Completion(Text):
    prompt: str | list[int] | list[str] | list[list[int]] = ""
    logprobs: Top | None = None


@dataclass(frozen=True)
class Chat(Text):
    messages: tuple[dict[str, Any], ...] = ()
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, bool | int | float | str] | None = None


def checked(kind: type[Text], body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are set and have an effect, converted to their types; refuses what is unknown or unsupported."""
    said = {name: value for name, value in body.items() if value is not None and name not in HINTS}
    if said.get("tool_choice") == "none" or said.get("tools") == []:
        said.pop("tools", None)
    if said.get("logprobs") is False:
        del said["logprobs"]
    for name in said.keys() & NEUTRAL.keys():
        _refuse_unsupported(name, said.pop(name))
    fields = {name: value for name, value in vars(build(kind, said, "the request")).items() if value is not None}
    if "stop" in fields:
        refuse_stops(fields["stop"])
    if fields.get("top_logprobs", 0) and "logprobs" not in fields:
        raise ValueError("top_logprobs is how many come with each token's own: it needs logprobs=true")
    if kind is Chat:
        refuse_messages(fields["messages"])
        refuse_template(fields.get("chat_template_kwargs", {}))
    return fields


def prompts_of(prompt: str | list[Any]) -> list[str | list[int]]:
    """The prompts of a request for completions: texts, or lists of tokens."""
    several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
    return list(prompt) if several else [prompt]


def seed_of(seed: int | None, number: int) -> int | None:
    """The seed of answer `number` to a prompt: the request's for the first one, and one that it determines for others;
    None: drawn.
    """
    if seed is None or number == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest()) >> 1


def settings_of(text: str) -> dict[str, Any]:
    """The settings in a `generation_config`, which is a text of JSON."""
    try:
        settings = json.loads(text, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"generation_config cannot be read as JSON: {shown(error)}") from None
    if not isinstance(settings, dict):
        raise ValueError(f"generation_config is a text of a JSON object, such as '{{\"top_k\": 50}}', not {text:.100}")
    refuse_settings(settings)
    for name in settings:
        if name not in SETTINGS:
            raise ValueError(f"generation_config: {unknown('setting of a request', name, SETTINGS)}")
    return settings


def refuse_messages(messages: tuple[dict[str, Any], ...]) -> None:
    """Refuse messages that no chat template could read, or that hold more than text."""
    if not messages:
        raise ValueError('messages is empty; give at least {"role": "user", "content": "…"}')
    for i, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise ValueError(f"messages[{i}] has no role; give user, assistant or system")
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise ValueError(
                    f"messages[{i}]: the model reads text alone, so a part is {{'type': 'text', 'text': …}}"
                )
        if not isinstance(content, str | list | None):
            raise ValueError(f"messages[{i}]: content is a text or a list of parts, not {content!r:.100}")
        if "tool_calls" in message:
            _refuse_tool_calls(i, message["tool_calls"])


def refuse_template(values: Mapping[str, Any]) -> None:
    """Refuse values for the chat template that are arguments of the function which fills it in, such as a template."""
    for name in values:
        if name in inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters:
            raise ValueError(f"chat_template_kwargs: {name} is no variable of the template, and is the server's to set")


def _refuse_tool_calls(i: int, calls: Any) -> None:
    for call in calls if isinstance(calls, list) else [None]:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("arguments"), str | dict):
            raise ValueError(f"messages[{i}]: a tool call is {{'function': {{'name': …, 'arguments': …}}}}")


def _refuse_unsupported(name: str, value: Any) -> None:
    values = NEUTRAL[name]
    if value not in values:
        only = f"; it may be {' or '.join(map(repr, values))}" if values else ""
        raise ValueError(f"{name}={value!r:.100} is not supported{only}")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"generation_config: {name} is no number")
