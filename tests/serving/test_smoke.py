"""The whole application, asked without a socket: a text, its stream, and a refusal."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mmspec.serving.app import application
from mmspec.serving.limits import Limits
from mmspec.serving.models import Models
from tests.support.serving import Plain, ask, language

PATH, MODEL, PROMPT = "/v1/completions", "mmspec/text-1m", "def __init__(self, name, value):\n    self.name = name\n"
ASKED = {"model": MODEL, "prompt": PROMPT, "max_tokens": 30, "temperature": 0.8, "seed": 7}

App = Callable[..., Awaitable[None]]


@pytest.fixture(scope="module")
def plain() -> Plain:
    return Plain(MODEL)


@pytest.fixture(scope="module")
def app(plain: Plain) -> App:
    return application(Models({MODEL: language(plain.model, plain.tokenizer, method="prompt-lookup")}), Limits())


def answer(app: App, **body: Any) -> tuple[int, str]:
    status, content = asyncio.run(ask(app, json.dumps(body).encode(), PATH))
    return status, content.decode()


def test_a_completion_is_the_plain_text_of_its_seed(app: App, plain: Plain) -> None:
    ids = plain.ids(PROMPT, 30, 7, do_sample=True, temperature=0.8)
    status, said = answer(app, **ASKED)
    assert status == 200
    assert json.loads(said)["choices"][0]["text"] == plain.text(ids)
    assert json.loads(said)["usage"]["completion_tokens"] == len(ids)


def test_a_stream_is_the_same_text(app: App, plain: Plain) -> None:
    status, said = answer(app, **ASKED, stream=True)
    events = [line.removeprefix("data: ") for line in said.splitlines() if line.startswith("data: {")]
    ids = plain.ids(PROMPT, 30, 7, do_sample=True, temperature=0.8)
    assert status == 200 and len(events) > 2
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == plain.streamed(ids)


def test_a_refusal_names_the_nearest_model(app: App) -> None:
    status, said = answer(app, **{**ASKED, "model": "mmspec/text-2m"})
    assert status == 404
    assert "did you mean 'mmspec/text-1m'" in json.loads(said)["error"]["message"]
