"""What an operator relies on: keys, time limits, a stop that lets answers end, figures, and a line a request."""

import asyncio
import json
import logging
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.main import get_command
from typer.testing import CliRunner

from mmspec.cli.app import build
from mmspec.serving.app import application
from mmspec.serving.door import Door
from mmspec.serving.limits import Limits
from mmspec.serving.meters import LOG
from mmspec.serving.models import Models
from tests.support.serving import CHAT, LOOP, Plain, ask, language

MODEL, PROMPT = "mmspec/text-1m", "def __init__(self, name, value):\n    self.name = name\n"
LIMITS = Limits()
EXAMPLES = Path(__file__).parents[2] / "examples" / "serve"
ASKED = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def plain() -> Plain:
    plain = Plain(MODEL)
    plain.tokenizer.chat_template = CHAT
    return plain


class Held:
    """A drafter that waits in the middle of a text until it may go on."""

    def __init__(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        self.asked.set()
        assert self.go_on.wait(60)
        return [[] for _ in tokens]


def door_of(plain: Plain, limits: Limits = LIMITS, keys: tuple[str, ...] = (), **how: Any) -> Door:
    return application(
        Models({MODEL: language(plain.model, plain.tokenizer, **(how or {"method": "plain"}))}), limits, keys
    )


@asynccontextmanager
async def client_of(door: Door, key: str = "none") -> Any:
    """OpenAI's client, and a plain one, of an application."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(door), base_url="http://here") as http:
        yield openai.AsyncOpenAI(base_url="http://here/v1", api_key=key, http_client=http, max_retries=0), http


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """The lines of the log while a test runs."""
    seen: list[dict[str, Any]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(json.loads(record.getMessage()))

    handler, before = Keep(), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    yield seen
    LOG.removeHandler(handler)
    LOG.setLevel(before)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def figures(text: str) -> dict[str, float]:
    """The samples of `/metrics`, named as in PromQL."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {f"{s.name}{dict(sorted(s.labels.items())) or ''}": s.value for s in samples}


@pytest.mark.parametrize("key", ["wrong", "secretandmore", "second ", "sécond"])
def test_a_wrong_key_opens_nothing(plain: Plain, key: str, lines: list[dict[str, Any]]) -> None:
    door = door_of(plain, keys=("secret", "second"))
    head = (b"authorization", f"Bearer {key}".encode())
    for headers in ((head,), ()):
        for path in ("/v1/completions", "/v1/models", "/v1/nowhere"):
            status, said = LOOP.run(ask(door, json.dumps(ASKED).encode(), path, headers=headers))
            assert status == 401 and "key is missing or wrong" in json.loads(said)["error"]["message"]
    assert {line["status"] for line in lines} == {401}
    assert "secret" not in json.dumps(lines)


def test_each_of_the_keys_opens_and_the_watch_needs_none(plain: Plain) -> None:
    door = door_of(plain, keys=("secret", "second"))

    async def run() -> None:
        for key in ("secret", "second"):
            async with client_of(door, key) as (client, _):
                assert [model.id for model in (await client.models.list()).data] == [MODEL]
        async with client_of(door, "third") as (client, http):
            with pytest.raises(openai.AuthenticationError):
                await client.completions.create(**ASKED)
            assert [(await http.get(path)).status_code for path in ("/health", "/ready", "/metrics")] == [200] * 3

    LOOP.run(run())


@pytest.mark.parametrize("key", ["", " ", "a b", "schlüssel", "a\n"])
def test_keys_that_no_client_could_send(key: str) -> None:
    ended = CliRunner().invoke(build(), ["serve", MODEL, "--api-key", key])
    assert ended.exit_code == 2 or "--api-key" in str(ended.exception)


def test_a_line_for_each_request(plain: Plain, lines: list[dict[str, Any]]) -> None:
    door = door_of(plain, method="prompt-lookup")

    async def run() -> Any:
        async with client_of(door) as (client, _):
            said = await client.completions.create(**{**ASKED, "n": 2, "max_tokens": 40})
            with pytest.raises(openai.BadRequestError):
                await client.completions.create(**ASKED, best_of=3)
            return said

    said = LOOP.run(run())
    good, bad = lines
    assert (good["status"], good["error"], good["route"]) == (200, None, "/v1/completions")
    assert good["id"] == said.id and good["model"] == MODEL and good["texts"] == 2
    assert good["method"] == "prompt-lookup" and good["generated_tokens"] == said.usage.completion_tokens == 80
    details = said.usage.completion_tokens_details
    assert good["passes"] == details.passes and good["accepted_tokens"] == details.accepted_prediction_tokens
    assert good["acceptance_length"] == pytest.approx((80 - 2) / details.passes, abs=1e-3)
    assert 0 < good["first_token_seconds"] <= good["seconds"]
    assert bad["status"] == 400 and "best_of=3 is not supported" in bad["error"] and bad["generated_tokens"] == 0
    assert PROMPT not in json.dumps(lines) and said.choices[0].text not in json.dumps(lines)


def test_figures_for_prometheus(plain: Plain) -> None:
    door = door_of(plain, method="prompt-lookup")

    async def run() -> tuple[dict[str, float], Any]:
        async with client_of(door) as (client, http):
            said = await client.completions.create(**{**ASKED, "max_tokens": 40})
            await http.post("/v1/completions", json={"prompt": ""})
            await http.get("/v1/a/path/of/somebodys")
            return figures((await http.get("/metrics")).text), said

    seen, said = LOOP.run(run())
    of = f"{{'model': '{MODEL}'}}"
    assert seen["mmspec_requests_total{'route': '/v1/completions', 'status': '200'}"] == 1
    assert seen["mmspec_requests_total{'route': '/v1/completions', 'status': '400'}"] == 1
    assert seen["mmspec_requests_total{'route': 'other', 'status': '404'}"] == 1
    assert seen[f"mmspec_generated_tokens_total{of}"] == 40
    assert seen[f"mmspec_prompt_tokens_total{of}"] == said.usage.prompt_tokens
    assert seen[f"mmspec_passes_total{of}"] == said.usage.completion_tokens_details.passes
    assert seen[f"mmspec_accepted_tokens_total{of}"] == said.usage.completion_tokens_details.accepted_prediction_tokens
    assert seen["mmspec_first_token_seconds_count"] == seen["mmspec_acceptance_length_count"] == 1
    assert seen["mmspec_request_seconds_count"] == 3
    assert seen["mmspec_texts_running"] == seen["mmspec_texts_waiting"] == 0
    assert seen["process_resident_memory_bytes"] > 0


def test_texts_that_wait_and_texts_that_are_written(plain: Plain) -> None:
    held = Held()
    door = door_of(plain, drafter=held)

    async def run() -> list[tuple[float, float]]:
        async with client_of(door) as (client, http):

            async def now() -> tuple[float, float]:
                seen = figures((await http.get("/metrics")).text)
                return seen["mmspec_texts_waiting"], seen["mmspec_texts_running"]

            call = asyncio.create_task(client.completions.create(**ASKED, n=2))
            await asyncio.to_thread(held.asked.wait)
            counted = [await now()]
            held.go_on.set()
            await call
            return [*counted, await now()]

    assert LOOP.run(run()) == [(1, 1), (0, 0)]


def test_what_takes_too_long_is_ended(plain: Plain, lines: list[dict[str, Any]]) -> None:
    held = Held()
    door = door_of(plain, Limits(seconds=0.3), drafter=held)

    async def run() -> None:
        async with client_of(door) as (client, _):
            with pytest.raises(openai.InternalServerError, match=r"took longer than 0\.3 s"):
                await client.completions.create(**ASKED)
            held.go_on.set()

    LOOP.run(run())
    assert lines[0]["status"] == 504 and "took longer" in lines[0]["error"]


@pytest.mark.parametrize("reads", [True, False])
def test_a_stream_that_is_ended_and_a_client_that_stops_reading(
    plain: Plain, reads: bool, lines: list[dict[str, Any]]
) -> None:
    """The stream of whoever reads says why it ends; whoever does not keeps no model: others are answered meanwhile."""
    held, sent = Held(), list[Any]()
    door = door_of(plain, drafter=held)

    async def send(message: Any) -> None:
        sent.append(message)
        if not reads and b"data" in message.get("body", b""):
            await asyncio.Event().wait()

    async def run() -> int:
        body = json.dumps({**ASKED, "stream": True}).encode()
        stream = asyncio.create_task(asked_with(door, body, send))
        await until(lambda: any(b"data" in message.get("body", b"") for message in sent))
        if not reads:
            held.go_on.set()
            assert (await ask(door, json.dumps(ASKED).encode(), "/v1/completions"))[0] == 200
            assert not stream.done()
        door.end()  # as a time limit does
        await stream
        held.go_on.set()
        return (await ask(door, json.dumps(ASKED).encode(), "/v1/completions"))[0]

    assert LOOP.run(run()) == 200 and door.empty
    assert any("took longer than" in (line["error"] or "") for line in lines)
    if reads:
        last = json.loads(sent[-1]["body"].decode().removeprefix("data: "))
        assert "took longer" in last["error"]["message"] and last["error"]["code"] == 504


async def asked_with(door: Door, body: bytes, send: Callable[[Any], Awaitable[None]]) -> None:
    """One request for a text, whose answer goes to `send`."""
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return parts.pop() if parts else await asyncio.Event().wait()

    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"}
    scope |= {"method": "POST", "path": "/v1/completions", "raw_path": b"", "query_string": b"", "root_path": ""}
    scope |= {"scheme": "http", "headers": [(b"content-type", b"application/json")]}
    scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)}
    await door(scope, receive, send)


def test_a_server_that_stops_lets_answers_end_and_takes_no_new_ones(plain: Plain) -> None:
    held = Held()
    door = door_of(plain, drafter=held)

    async def run() -> None:
        async with client_of(door) as (client, http):
            running = asyncio.create_task(client.completions.create(**ASKED))
            await asyncio.to_thread(held.asked.wait)
            assert (await http.get("/ready")).status_code == 200
            door.stopping = True
            assert (await http.get("/ready")).status_code == 503
            assert (await http.get("/health")).status_code == 200
            with pytest.raises(openai.InternalServerError, match="takes no new requests") as refused:
                await client.completions.create(**ASKED)
            assert refused.value.status_code == 503 and int(refused.value.response.headers["retry-after"]) > 0
            assert not door.empty
            held.go_on.set()
            assert (await running).usage.completion_tokens == 12
            assert door.empty

    LOOP.run(run())


def test_the_client_asks_again_where_a_server_stops(plain: Plain) -> None:
    """A retry, which the client does by itself, finds the next server behind the same address."""
    stopped, other = door_of(plain), door_of(plain)
    stopped.stopping = True
    doors = [stopped, other]

    async def balanced(scope: Any, receive: Any, send: Any) -> None:
        await (doors.pop(0) if len(doors) > 1 else doors[0])(scope, receive, send)

    async def run() -> Any:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(balanced)) as http:
            client = openai.AsyncOpenAI(base_url="http://here/v1", api_key="none", http_client=http, max_retries=1)
            return await client.completions.create(**ASKED)

    assert LOOP.run(run()).usage.completion_tokens == 12


def test_when_the_grace_is_over_answers_are_ended(plain: Plain, lines: list[dict[str, Any]]) -> None:
    held = Held()
    door = door_of(plain, drafter=held)

    async def run() -> None:
        async with client_of(door) as (client, _):
            running = asyncio.create_task(client.completions.create(**ASKED))
            await asyncio.to_thread(held.asked.wait)
            door.stopping = True
            door.end()
            with pytest.raises(openai.InternalServerError, match="the server stops"):
                await running
            held.go_on.set()

    LOOP.run(run())
    assert lines[0]["status"] == 504


@pytest.mark.parametrize("name", ["Containerfile", "mmspec.service"])
def test_files_for_operators_name_options_that_exist(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    command = re.search(r"^(?:ENTRYPOINT|ExecStart=).*", text, re.MULTILINE)
    assert command is not None
    options = {option for command in get_command(build()).commands["serve"].params for option in command.opts}
    named = set(re.findall(r"--[a-z][a-z-]*", command[0]))
    assert named and named <= options


def test_the_unit_is_one_for_systemd(tmp_path: Path) -> None:
    """Verified by systemd itself, with a program that exists."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd here")
    unit = tmp_path / "mmspec.service"
    unit.write_text((EXAMPLES / unit.name).read_text().replace("/opt/mmspec/bin/mmspec", sys.executable))
    ended = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
