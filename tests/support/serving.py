"""A model behind `mmspec serve`, without and with its process; and what it has to answer: plain decoding's text."""

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers.decoders import DecodeStream

from mmspec.api.build import decoder_for
from mmspec.api.enable import Enabled
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.serving.models import Language

LOOP = asyncio.Runner()
"""One loop for all tests, as a server's: its threads report to it after a client has gone, too."""
CHAT = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
"""A chat template for models that have none."""


class Plain:
    """The text that a model writes alone, plainly, in this process."""

    def __init__(self, name: str) -> None:
        self.model, self.tokenizer = load_model(name), load_tokenizer(name)
        self.decoder = decoder_for(self.model, "plain")

    def ids(self, prompt: str, new: int, seed: int, **sampling: Any) -> list[int]:
        given = self.tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        alone = Enabled(self.model, self.decoder, seed, "philox")
        return alone.generate(**given, max_new_tokens=new, **sampling)[0, given["input_ids"].shape[1] :].tolist()

    def text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def streamed(self, ids: list[int]) -> str:
        """The text as a stream shows it: without bytes at the end that are no whole character."""
        stream = DecodeStream([], skip_special_tokens=True)
        return "".join(stream.step(self.tokenizer._tokenizer, each) or "" for each in ids)


class Leaving:
    """A drafter whose client leaves while it drafts for the `last` time; it goes on once the server has noticed."""

    def __init__(self, last: int) -> None:
        self.asked = 0  # how often it drafted
        self._last = last
        self.left, self.noticed = threading.Event(), threading.Event()

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        self.asked += 1
        if self.asked == self._last:
            self.left.set()
            assert self.noticed.wait(60)
        return [[] for _ in tokens]

    async def receive(self) -> dict[str, Any]:
        """What the server receives after the request's body."""
        await asyncio.to_thread(self.left.wait)
        asyncio.get_running_loop().call_soon(self.noticed.set)  # runs when whoever awaits this has acted on it
        return {"type": "http.disconnect"}


def language(model: Any, tokenizer: Any, **how: Any) -> Language:
    return Language(model, tokenizer, decoder_for(model, **how))


async def ask(
    app: Callable[..., Awaitable[None]],
    body: bytes,
    path: str = "/v1/",
    after: Callable[[], Awaitable[dict[str, Any]]] | None = None,
    headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"application/json"),),
) -> tuple[int, bytes]:
    """Status and body of an ASGI application's answer; `after` gives what comes after the body, default: nothing."""
    sent: list[Any] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return parts.pop() if parts else await (after or asyncio.Event().wait)()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"}
    scope |= {"method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    scope |= {"scheme": "http", "headers": list(headers), "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)}
    await app(scope, receive, send)
    status = next((message["status"] for message in sent if "status" in message), 0)
    return status, b"".join(message.get("body", b"") for message in sent)


@contextmanager
def server(folder: Path, *arguments: str, template: str | None = CHAT) -> Iterator[tuple[str, int]]:
    """A process of `mmspec serve`: its address and its id; it is stopped at the end. Without `template` the model's."""
    command = [sys.executable, "-u", "-m", "mmspec", "serve", *arguments, "--port", "0"]
    if template is not None:
        (folder / "chat.jinja").write_text(template)
        command += ["--chat-template", str(folder / "chat.jinja")]
    log = (folder / "server.log").open("w+")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        log.seek(0)
        address = re.search(r"http://\S+", said)
        assert address, f"{said}{log.read()}"
        yield address[0], process.pid
    finally:
        process.terminate()
        process.wait(30)


def generator_state() -> bytes:
    return bytes(torch.get_rng_state().tolist())
