"""A client that leaves ends the work for it, whichever answer it was waiting for; the next one is served."""

import asyncio
import json

import pytest

import mmspec
from mmspec.serving.app import application
from mmspec.serving.limits import Limits
from mmspec.serving.models import Drawing, Models
from tests.support.serving import CHAT, Leaving, Plain, ask, language

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "user", "content": "def f("}]


@pytest.fixture(scope="module")
def plain() -> Plain:
    plain = Plain("mmspec/text-1m")
    plain.tokenizer.chat_template = CHAT
    return plain


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "fields"), [("chat/", {"messages": MESSAGES}), ("", {"prompt": "def f("})])
def test_text(plain: Plain, path: str, fields: dict[str, object], stream: bool) -> None:
    drafter = Leaving(5)
    app = application(Models({"m": language(plain.model, plain.tokenizer, drafter=drafter)}), Limits())
    body = {**fields, "stream": stream, "max_tokens": 200, "generation_config": '{"eos_token_id": []}'}

    async def both() -> tuple[int, bytes]:
        await ask(app, json.dumps(body).encode(), f"/v1/{path}completions", drafter.receive)
        asked = drafter.asked
        assert asked == 5
        short = {**body, "max_tokens": 3, "stream": False}
        return await ask(app, json.dumps(short).encode(), f"/v1/{path}completions")

    status, text = asyncio.run(both())
    assert status == 200
    assert json.loads(text)["usage"]["completion_tokens"] == 3


def test_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmspec.serving import pictures

    pipe = mmspec.Pipeline.from_pretrained("mmspec/emoji", method="plain")
    leaving, real = Leaving(3), pictures._draw

    def draw(pipe: object, call: dict[str, object], request: object) -> list[object]:
        go_on = request.go_on  # type: ignore[attr-defined]

        def watched() -> None:
            leaving.propose([], 0)
            go_on()

        monkeypatch.setattr(request, "go_on", watched)
        return real(pipe, call, request)

    monkeypatch.setattr(pictures, "_draw", draw)
    app = application(Models({"m": Drawing(pipe)}), Limits())
    status, _ = asyncio.run(ask(app, b'{"prompt": "red heart"}', "/v1/images/generations", leaving.receive))
    assert status == 499
    assert leaving.asked == 3
