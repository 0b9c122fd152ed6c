"""`mmspec serve` as a process, asked by OpenAI's own client: the plain text, chat, streams, pictures, and refusals."""

import base64
import io
import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image

import mmspec
from tests.support.serving import Plain, server

pytestmark = pytest.mark.slow

TEXT, PICTURES = "mmspec/text-1m", "mmspec/emoji"
PROMPT = "def __init__(self, name, value):\n    self.name = name\n"
DRAWN = {"do_sample": True, "temperature": 0.8}


@pytest.fixture(scope="module")
def plain() -> Plain:
    return Plain(TEXT)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    arguments = (TEXT, PICTURES, "--method", "prompt-lookup", "--method", "gs-sjd", "--max-body-bytes", "50000")
    with server(tmp_path_factory.mktemp("serve"), *arguments) as (url, _):
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Any:
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)


def test_a_completion_is_the_plain_text_of_its_seed(client: Any, plain: Plain) -> None:
    for seed in (1, 2):
        said = client.completions.create(model=TEXT, prompt=PROMPT, max_tokens=40, temperature=0.8, seed=seed)
        ids = plain.ids(PROMPT, 40, seed, **DRAWN)
        assert said.choices[0].text == plain.text(ids)
        assert said.usage.completion_tokens == len(ids)
        assert said.model == TEXT


def test_a_completion_at_temperature_0_is_greedy(client: Any, plain: Plain) -> None:
    said = client.completions.create(model=TEXT, prompt=PROMPT, max_tokens=40, temperature=0)
    assert said.choices[0].text == plain.text(plain.ids(PROMPT, 40, 0, do_sample=False))


def test_a_stream_is_the_same_text(client: Any, plain: Plain) -> None:
    how = {"model": TEXT, "prompt": PROMPT, "max_tokens": 40, "temperature": 0.8, "seed": 7}
    *parts, last = client.completions.create(**how, stream=True, stream_options={"include_usage": True})
    assert "".join(part.choices[0].text for part in parts) == plain.streamed(plain.ids(PROMPT, 40, 7, **DRAWN))
    assert last.choices == [] and last.usage.completion_tokens <= 40
    assert not any(part.usage for part in client.completions.create(**how, stream=True))


def test_a_chat_is_the_plain_text_after_its_template(client: Any, plain: Plain) -> None:
    messages = [{"role": "user", "content": "import os"}, {"role": "user", "content": "import sys"}]
    how = {"model": TEXT, "messages": messages, "max_tokens": 30, "temperature": 0.8, "seed": 7}
    ids = plain.ids("import os\nimport sys\n", 30, 7, **DRAWN)
    assert client.chat.completions.create(**how).choices[0].message.content == plain.text(ids)
    parts = client.chat.completions.create(**how, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == plain.streamed(ids)


def test_settings_of_transformers(client: Any, plain: Plain) -> None:
    settings = {"do_sample": True, "top_k": 5, "repetition_penalty": 1.2}
    more = {"generation_config": json.dumps(settings)}
    said = client.completions.create(model=TEXT, prompt=PROMPT, max_tokens=30, seed=3, extra_body=more)
    assert said.choices[0].text == plain.text(plain.ids(PROMPT, 30, 3, **settings))


def test_stop_strings(client: Any, plain: Plain) -> None:
    whole = plain.text(plain.ids(PROMPT, 60, 0, do_sample=False))
    stop = whole[len(whole) // 2 :][:3]
    how = {"model": TEXT, "prompt": PROMPT, "max_tokens": 60, "temperature": 0, "stop": [stop]}
    said = client.completions.create(**how).choices[0]
    assert said.text == whole[: whole.index(stop)] and said.finish_reason == "stop"
    parts = [part.choices[0] for part in client.completions.create(**how, stream=True)]
    assert "".join(part.text for part in parts) == said.text and parts[-1].finish_reason == "stop"


def test_pictures_are_those_of_the_pipeline(client: Any) -> None:
    said = client.images.generate(model=PICTURES, prompt="red heart", n=2, extra_body={"seed": 5, "guidance_scale": 2})
    pipe = mmspec.Pipeline.from_pretrained(PICTURES, method="plain")
    drawn = pipe("red heart", num_images_per_prompt=2, seed=5, guidance_scale=2.0).images
    got = [Image.open(io.BytesIO(base64.b64decode(each.b64_json))) for each in said.data]
    assert len(got) == 2
    assert all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(got, drawn, strict=True))


def test_the_models_that_are_listed(client: Any) -> None:
    assert [model.id for model in client.models.list()] == [TEXT, PICTURES]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"prompt": ""}, 400, "the prompt is empty"),
        ({"prompt": "word " * 3000}, 400, "the model's context of 1024 takes 1023; shorten it"),
        ({"prompt": "x", "max_tokens": 5000}, 400, "at most 4096"),
        ({"prompt": "x", "max_tokens": 2000}, 400, "go beyond the model's context of 1024"),
        ({"prompt": "x", "n": 30}, 400, "1 to 16 texts"),
        ({"prompt": "x", "generation_config": '{"num_beams": 2}'}, 400, "beam search is not speculative"),
        ({"prompt": "x", "generation_config": '{"repetition_penalty": -1}'}, 400, "strictly positive"),
        ({"prompt": "x", "generation_config": '{"top_k": "x", "do_sample": true}'}, 400, "top_k"),
        ({"promt": "x"}, 400, "did you mean 'prompt'"),
        ({"prompt": "x", "model": "mmspec/text-2m"}, 404, "did you mean 'mmspec/text-1m'"),
        ({"prompt": "x", "model": PICTURES}, 404, "/v1/images/generations"),
        ({"prompt": "x" * 60_000}, 413, "larger than 50,000 bytes"),
    ],
)
def test_refusals(url: str, body: dict[str, Any], status: int, says: str, stream: bool) -> None:
    got, said = post(f"{url}/completions", {**body, "stream": stream})
    assert got == status, said
    assert says in said["error"]["message"]
    assert said["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("images/generations", {"prompt": "red heart", "n": 9}, 400, "1 to 4 pictures"),
        ("images/generations", {"prompt": "red heart", "size": "7x7"}, 400, "64"),
        ("images/generations", {"prompt": "red heart", "response_format": "url"}, 400, "b64_json"),
        ("images/generations", {}, 400, "prompt"),
        ("images/generations", {"prompt": "red heart", "class_labels": 3}, 400, "class_labels"),
        ("images/generations", {"prompt": "red heart", "model": TEXT}, 404, "/v1/completions"),
        ("chat/completions", {"messages": []}, 400, "messages is empty"),
        ("responses", {"input": "x"}, 404, "there is no /v1/responses here"),
        ("completions", [1], 400, "no JSON object"),
        ("completions", b"{", 400, "no JSON object"),
        ("completions", b"[" * 40_000, 400, "parsing the body"),
    ],
)
def test_refusals_elsewhere(url: str, path: str, body: Any, status: int, says: str) -> None:
    got, said = post(f"{url}/{path}", body)
    assert got == status, said
    assert says in said["error"]["message"]


def test_models_are_neither_loaded_nor_let_go_on_a_requests_word(url: str) -> None:
    for path in ("load_model", "reset"):
        assert post(f"{url.removesuffix('/v1')}/{path}", {"model": TEXT})[0] == 404


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "mmspec", "serve", TEXT, "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert ended.stderr.strip() == f"mmspec: port {port} of 127.0.0.1 is taken; --port 0 takes one that is free"


def test_a_model_that_cannot_be_served(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mmspec", "serve", "mmspec/four-courts", "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert "language models and pipelines that draw can be served" in ended.stderr


def post(url: str, body: Any) -> tuple[int, Any]:
    """Status and content of the answer to a body, which is sent as JSON unless it is bytes already."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
