"""SIGTERM in the middle of a stream: it ends whole within the grace, with an error behind it; new requests hear 503."""

import json
import os
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.serving import server

pytestmark = pytest.mark.slow

MODEL = "mmspec/text-1m"
LONG = {"model": MODEL, "prompt": "def f(", "n": 8, "extra_body": {"generation_config": '{"eos_token_id": []}'}}


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def over(process: int) -> bool:
    """True if a process, which may be a zombie by now, has ended."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def stopped(folder: Path, grace: str, tokens: int) -> tuple[list[Any], Exception | None, list[dict[str, Any]]]:
    """The rest of a stream in whose middle the server was told to stop, what has ended it, and the log."""
    parts: list[Any] = []
    ended = None
    with server(folder, MODEL, "--method", "plain", "--grace", grace) as (url, process):
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
        stream = client.completions.create(**LONG, max_tokens=tokens, stream=True)
        parts.append(next(stream))
        os.kill(process, signal.SIGTERM)
        root = url.removesuffix("/v1")
        while status(f"{root}/ready") == 200:
            time.sleep(0.01)
        assert status(f"{root}/health") == 200
        with pytest.raises(openai.InternalServerError, match="takes no new requests") as refused:
            client.completions.create(model=MODEL, prompt="x")
        assert refused.value.status_code == 503 and refused.value.response.headers["retry-after"]
        try:
            parts += stream
        except openai.APIError as error:
            ended = error
        while not over(process):
            time.sleep(0.05)
    lines = (folder / "server.log").read_text().splitlines()
    return parts, ended, [json.loads(line) for line in lines if line.startswith("{")]


def test_within_the_grace_a_stream_ends_as_if_nothing_were(tmp_path: Path) -> None:
    parts, ended, lines = stopped(tmp_path, "600", 300)
    assert ended is None
    assert [part.choices[0].finish_reason for part in parts].count("length") == 8
    assert [line["status"] for line in lines] == [503, 200] and lines[1]["generated_tokens"] == 8 * 300


def test_behind_the_grace_a_stream_says_why_it_ends(tmp_path: Path) -> None:
    _, ended, lines = stopped(tmp_path, "1", 1000)
    assert ended is not None and "the server stops" in str(ended)
    assert [line["status"] for line in lines] == [503, 200] and "the server stops" in lines[1]["error"]
