"""The whole application, asked without a socket: a text, its stream, and a refusal."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mmspec.serving.app import application
from mmspec.serving.limits import Limits
from mmspec.serving.models import Models
from tests.support.serving import CHAT, Plain, ask, language

PATH, MODEL, PROMPT = "/v1/completions", "mmspec/text-1m", "def __init__(self, name, value):\n    self.name = name\n"
ASKED = {"model": MODEL, "prompt": PROMPT, "max_tokens": 30, "temperature": 0.8, "seed": 7}

App = Callable[..., Awaitable[None]]


@pytest.fixture(scope="module")
def plain() -> Plain:
    return Plain(MODEL)


@pytest.fixture(scope="module")
def app(plain: Plain) -> App:
    plain.tokenizer.chat_template = CHAT
    return application(Models({MODEL: language(plain.model, plain.tokenizer, method="prompt-lookup")}), Limits())


def answer(app: App, path: str = PATH, **body: Any) -> tuple[int, str]:
    status, content = asyncio.run(ask(app, json.dumps(body).encode(), path))
    return status, content.decode()


def streamed(app: App, path: str = PATH, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, which ends as OpenAI's do."""
    status, said = answer(app, path, **body, stream=True)
    *events, end = [event.removeprefix("data: ") for event in said.split("\n\n") if event]
    assert status == 200 and end == "[DONE]"
    return [json.loads(event) for event in events]


def test_a_completion_is_the_plain_text_of_its_seed(app: App, plain: Plain) -> None:
    ids = plain.ids(PROMPT, 30, 7, do_sample=True, temperature=0.8)
    status, said = answer(app, **ASKED)
    assert status == 200
    assert json.loads(said)["choices"][0]["text"] == plain.text(ids)
    assert json.loads(said)["usage"]["completion_tokens"] == len(ids)


def test_a_stream_is_the_same_text(app: App, plain: Plain) -> None:
    events = streamed(app, **ASKED)
    ids = plain.ids(PROMPT, 30, 7, do_sample=True, temperature=0.8)
    assert len(events) > 2
    assert "".join(event["choices"][0]["text"] for event in events) == plain.streamed(ids)


def test_a_stream_counts_tokens_when_asked(app: App) -> None:
    assert not any("usage" in event for event in streamed(app, **ASKED))
    *events, last = streamed(app, **ASKED, stream_options={"include_usage": True})
    whole = json.loads(answer(app, **ASKED)[1])
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    assert not any("usage" in event for event in events)
    assert answer(app, **ASKED, stream=True, stream_options={"usage": True})[0] == 400


@pytest.mark.parametrize(
    ("path", "asked"),
    [(PATH, {"prompt": PROMPT}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]})],
)
def test_a_text_ends_before_its_stop_string(app: App, path: str, asked: dict[str, Any]) -> None:
    """Also where that takes several tokens, begins in the middle of one, or ends with the last one allowed."""
    asked = {**ASKED, "prompt": None, **asked, "temperature": 0}

    def texts(choice: dict[str, Any]) -> str:
        said = choice.get("message", choice.get("delta", choice))
        return said.get("text", said.get("content", ""))

    whole = texts(json.loads(answer(app, path, **asked)[1])["choices"][0])
    for begin, size in ((9, 1), (9, 7), (10, 7), (11, 7), (30, 4)):
        stop = whole[begin:][:size]
        said = json.loads(answer(app, path, **asked, stop=["\x00", stop])[1])
        choice, used = said["choices"][0], said["usage"]["completion_tokens"]
        assert texts(choice) == whole[: whole.index(stop)] and choice["finish_reason"] == "stop"
        for most in (30, used):
            limited = {**asked, "max_tokens": most, "stop": stop}
            events = [event["choices"][0] for event in streamed(app, path, **limited)]
            assert "".join(map(texts, events)) == texts(choice) and events[-1]["finish_reason"] == "stop"
        cut = json.loads(answer(app, path, **{**limited, "max_tokens": used - 1})[1])["choices"][0]
        assert cut["finish_reason"] == "length" and whole.startswith(texts(cut))


def test_what_was_held_back_is_sent_where_no_stop_string_comes(app: App) -> None:
    whole = json.loads(answer(app, **ASKED)[1])["choices"][0]["text"]
    for begin in range(1, len(whole), 5):
        events = streamed(app, **ASKED, stop=whole[begin:] + "\x00")
        assert "".join(event["choices"][0]["text"] for event in events) == whole


def test_a_refusal_names_the_nearest_model(app: App) -> None:
    status, said = answer(app, **{**ASKED, "model": "mmspec/text-2m"})
    assert status == 404
    assert "did you mean 'mmspec/text-1m'" in json.loads(said)["error"]["message"]
