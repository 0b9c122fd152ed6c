"""transformers' handlers of text, with checked fields, seeds of one request, and refusals before a stream.

Answers are as OpenAI's clients expect them: without the stop string, and streams with their last event.
"""

import copy
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse
from transformers import GenerationConfig
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.utils import BaseHandler

from mmspec.api.stopping import cut, settled, stop_strings
from mmspec.serving.fields import Chat, Completion, Text, checked, settings_of
from mmspec.serving.models import Language, Models
from mmspec.serving.request import CURRENT

TEXTS = ("text", "content", "reasoning_content")
"""Fields of a choice, of its message or of its delta that hold what the model wrote."""


class Speculating(BaseHandler):
    """The part that both handlers do otherwise than transformers'; it stands before one of them in a class's bases."""

    fields: type[Text]  # the fields of a request
    model_manager: Models

    async def handle_request(self, body: dict[str, Any], request_id: str) -> Any:
        """Answer a request; of a stream, only once its first tokens are there."""
        answer = await super().handle_request(body, request_id)
        await CURRENT.get().begun()
        return completed(
            answer, stop_strings(body.get("stop")), body.get("stream_options", {}).get("include_usage", False)
        )

    def _validate_request(self, body: dict[str, Any]) -> None:
        """Leave in `body` the fields that have an effect."""
        fields = checked(self.fields, body)
        fields["model"] = self.model_manager.named(fields.get("model"), Language)
        if self.fields is Chat and self.model_manager.languages()[fields["model"]].processor.chat_template is None:
            raise ValueError(
                f"{fields['model']} has no chat template: use /v1/completions, or start the server with --chat-template"
            )
        body.clear()
        body.update(fields)

    def _build_generation_config(self, body: dict[str, Any], own: GenerationConfig, use_cb: bool = False) -> Any:
        """The configuration of a call.

        The seed goes to the request: transformers would set torch's own generator, in a thread that others share. A
        temperature or `top_p` means that the text is drawn, whatever the model's own configuration says.
        """
        CURRENT.get().seeded(body.pop("seed", None))
        settings = settings_of(body.pop("generation_config", "{}"))
        if body.keys() & {"temperature", "top_p"}:
            settings["do_sample"] = body.get("temperature") != 0
        if body.get("temperature") == 0:
            del body["temperature"]
        asked = (body.get("max_completion_tokens"), body.get("max_tokens"), settings.pop("max_new_tokens", None))
        own = copy.deepcopy(own)
        own.update(**settings)
        config = super()._build_generation_config(body, own, use_cb=use_cb)
        config.max_new_tokens = next((number for number in asked if number is not None), None)
        return config


class SpeculatingChat(Speculating, ChatCompletionHandler):
    fields = Chat


class SpeculatingCompletion(Speculating, CompletionHandler):
    fields = Completion


def completed(answer: Response, stops: Sequence[str], usage: bool) -> Response:
    """An answer of transformers' handlers; a stream ends with the number of tokens if `usage` is asked for."""
    texts = Texts(stops)
    if isinstance(answer, StreamingResponse):
        answer.body_iterator = _events(answer.body_iterator, texts, usage)
        return answer
    said = json.loads(bytes(answer.body))
    for choice in said["choices"]:
        texts.settle(choice, last=True)
    return JSONResponse(said)


@dataclass
class Texts:
    """The texts of one choice while they come: what is sent of them is never taken back."""

    stops: Sequence[str]  # the strings at which a text ends; they are not sent
    # What came and is not sent yet, by field: it may be the beginning of a stop string
    held: dict[str, str] = field(default_factory=dict)
    over: bool = False  # whether a stop string came

    def settle(self, choice: dict[str, Any], last: bool) -> bool:
        """Leave in a choice what can be sent of its texts by now; `last`: nothing follows. Is anything left in it?"""
        part = next((choice[name] for name in ("message", "delta") if name in choice), choice)
        for name in TEXTS:
            text = self.held.pop(name, "") + part.get(name, "")
            kept = "" if self.over else settled(text, self.stops, last)
            self.over |= kept == cut(text, self.stops) != text
            self.held[name] = "" if self.over else text[len(kept) :]
            if kept or (last and name in part):
                part[name] = kept
            else:
                part.pop(name, None)
        if self.over and choice.get("finish_reason") == "length":
            choice["finish_reason"] = "stop"  # its last token was also the last that the request asked for
        return last or bool(part.keys() & TEXTS if part is choice else part)


async def _events(parts: Any, texts: Texts, usage: bool) -> AsyncGenerator[str, None]:
    """The events of a stream of transformers', completed; it may send several at once."""
    async with aclosing(parts):
        async for part in parts:
            for event in filter(None, part.split("\n\n")):
                said = json.loads(event.removeprefix("data: "))
                tokens = said.pop("usage", None)
                if "error" in said or texts.settle(said["choices"][0], "finish_reason" in said["choices"][0]):
                    yield _event(said)
                if usage and tokens is not None:
                    yield _event({**said, "choices": [], "usage": tokens})
    yield "data: [DONE]\n\n"


def _event(said: dict[str, Any]) -> str:
    return f"data: {json.dumps(said)}\n\n"
