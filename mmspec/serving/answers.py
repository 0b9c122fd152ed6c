"""transformers' answers as OpenAI's clients expect them: without the stop string, and streams with their last event."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from mmspec.api.stops import cut, settled

TEXTS = ("text", "content", "reasoning_content")
"""Fields of a choice, of its message or of its delta that hold what the model wrote."""


def completed(answer: Response, stops: Sequence[str], usage: bool) -> Response:
    """An answer of transformers' handlers, completed.

    Args:
        answer: The answer, whole or a stream.
        stops: The request's stop strings.
        usage: Whether a stream ends with the number of tokens.
    """
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
            self.over |= cut(text, self.stops) != text
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
