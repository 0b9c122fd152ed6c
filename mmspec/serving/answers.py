"""Answers as OpenAI's clients expect them: several choices, without the stop string, with what drafts did, and streams
with their last event. transformers' handlers answer with one choice each; those of one request are put together here.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from mmspec.api.stopping import cut, settled
from mmspec.serving.request import FAULT, Request, body_of
from mmspec.serving.streamers import chat_scores, completion_scores

TEXTS = ("text", "content", "reasoning_content")
"""Fields of a choice, of its message or of its delta that hold what the model wrote."""


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


@dataclass
class Choice:
    """One of the choices of an answer, while it comes."""

    number: int
    request: Request  # its share of the request
    texts: Texts
    tokenizer: Any
    written: int = 0  # characters of the tokens whose log-probabilities were sent

    def settle(self, choice: dict[str, Any], last: bool) -> bool:
        """As `Texts.settle`; numbers the choice, and adds the log-probabilities that are there by now."""
        choice["index"] = self.number
        left = self.texts.settle(choice, last)
        if left and self.request.top is not None:
            scores = [self.request.scores.popleft() for _ in range(len(self.request.scores))]
            if "message" in choice or "delta" in choice:
                choice["logprobs"] = chat_scores(scores, self.tokenizer)
            else:
                choice["logprobs"] = completion_scores(scores, self.tokenizer, self.written)
                self.written += len("".join(choice["logprobs"]["tokens"]))
        return left


def usage_of(requests: Sequence[Request], each: int) -> dict[str, Any]:
    """The `usage` of an answer with `each` choices a prompt: a prompt counts once.

    Rejected tokens are drafted ones that are in no text, so that they are not part of `completion_tokens`; `passes` are
    the target's after the prompt.
    """
    prompt, written = sum(r.prompt_tokens for r in requests[::each]), sum(r.tokens for r in requests)
    reports = [request.report for request in requests if request.report is not None]
    accepted = sum(report.accepted for report in reports)
    details = {
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": sum(report.drafted for report in reports) - accepted,
        "passes": sum(report.row_rounds for report in reports),
    }
    total = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
    return {**total, "completion_tokens_details": details}


def completed(
    answers: Sequence[Response], choices: Sequence[Choice], each: int, request_id: str, usage: bool
) -> Response:
    """The answer to a request, of transformers' answers to its shares, all of which are streams, or none; there are
    `each` choices a prompt. A stream ends with the number of tokens if `usage` is asked for.
    """
    shared = {"id": request_id}
    streams = [answer.body_iterator for answer in answers if isinstance(answer, StreamingResponse)]
    if streams:
        events = _events(streams, choices, each if usage else 0, shared)
        return StreamingResponse(events, media_type="text/event-stream")
    said = [json.loads(bytes(answer.body)) for answer in answers]
    for choice, one in zip(choices, said, strict=True):
        choice.settle(one["choices"][0], last=True)
    used = usage_of([choice.request for choice in choices], each)
    return JSONResponse({**said[0], **shared, "choices": [one["choices"][0] for one in said], "usage": used})


async def _events(
    streams: Sequence[Any], choices: Sequence[Choice], each: int, shared: dict[str, Any]
) -> AsyncGenerator[str, None]:
    """The events of transformers' streams, as one stream; with `each` above 0 it ends with their usage."""
    said: dict[str, Any] = {}
    async with aclosing(_together(streams)) as parts:
        async for number, part in parts:
            for event in filter(None, part.split("\n\n")):  # it may send several at once
                said = json.loads(event.removeprefix("data: "))
                said.pop("usage", None)
                if "error" in said:
                    choices[number].request.fail(said["error"])
                    yield f"data: {body_of(FAULT, said['error'])}\n\n"
                    return
                if choices[number].settle(said["choices"][0], "finish_reason" in said["choices"][0]):
                    yield _event({**said, **shared})
    if each:
        usage = usage_of([choice.request for choice in choices], each)
        yield _event({**said, **shared, "choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


async def _together(streams: Sequence[Any]) -> AsyncGenerator[tuple[int, str], None]:
    """The parts of several streams as they come, each with the number of its stream."""
    queue: asyncio.Queue[tuple[int, str | None]] = asyncio.Queue()

    async def pass_on(number: int, parts: Any) -> None:
        try:
            async with aclosing(parts):
                async for part in parts:
                    queue.put_nowait((number, part))
        finally:
            queue.put_nowait((number, None))

    tasks = [asyncio.create_task(pass_on(number, parts)) for number, parts in enumerate(streams)]
    try:
        going = len(tasks)
        while going:
            number, part = await queue.get()
            if part is None:
                going -= 1
                await tasks[number]  # raises what has ended it
            else:
                yield number, part
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _event(said: dict[str, Any]) -> str:
    return f"data: {json.dumps(said)}\n\n"
