"""Ill-behaved clients at `mmspec serve` for a long time: no error of the server's, memory flat, every place free.

By hand: `python -m tests.serving.soak --seconds 3600`; it ends with status 1 where something of this does not hold. The
clients ask one after the other each, at random: texts, streams, several choices, log-probabilities and JSON; streams
that it leaves, calls that it gives up, bodies that are no requests, and streams that it does not read. Equal requests
have to get equal answers.
"""

import argparse
import contextlib
import json
import random
import socket
import statistics
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
from prometheus_client.parser import text_string_to_metric_families

from tests.support.serving import server

PROMPTS = ("def __init__(self, name):\n", "import os\nimport sys\n", "for i in range(10):\n    print(i", "class A:\n")
SCHEMA = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
BAD: tuple[Any, ...] = (
    b"{", b"[1]", b"", b"\xff\xfe", {"prompt": 3}, {"prompt": "x", "temperature": "hot"}, {"promt": "x"},
    {"prompt": ""},
    {"prompt": "x", "n": -1}, {"prompt": "x", "max_tokens": 10**9}, {"prompt": "word " * 5000}, {"prompt": [9**9]},
    {"prompt": "x", "stop": [""]}, {"prompt": "x", "seed": -1}, {"prompt": "x", "generation_config": "{"},
    {"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": []}}}},
    {"prompt": "x", "model": "nobody's"}, {"prompt": "x", "generation_config": '{"num_beams": 3}'},
)  # fmt: skip


class Soak:
    """Clients of one server, and what they saw."""

    def __init__(self, url: str, model: str, seconds: float) -> None:
        self.url, self.model = url, model
        self.until = time.monotonic() + seconds
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.answers: dict[str, Any] = {}
        self.lock = threading.Lock()

    def client(self, number: int) -> None:
        random_ = random.Random(number)
        client = openai.OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=300)
        deeds: list[Callable[[Any, random.Random], str]] = [self.whole, self.whole, self.stream, self.stream]
        deeds += [self.leave, self.give_up, self.bad, self.stall]
        while time.monotonic() < self.until:
            deed = random_.choice(deeds)
            try:
                said = deed(client, random_)
            except Exception as error:
                said = f"{type(error).__name__}"
                with self.lock:
                    self.wrong.append(f"{deed.__name__}: {type(error).__name__}: {error}")
            with self.lock:
                self.seen[f"{deed.__name__} {said}".strip()] += 1

    def fields(self, random_: random.Random) -> dict[str, Any]:
        asked: dict[str, Any] = {"model": self.model, "prompt": random_.choice(PROMPTS), "seed": random_.randrange(3)}
        asked |= {"max_tokens": random_.choice((1, 8, 40, 120)), "temperature": random_.choice((0, 0.8))}
        more = ({}, {"n": 3}, {"logprobs": 2}, {"stop": ["\n\n"]}, {"presence_penalty": 1.0})
        asked |= random_.choice(more)
        if random_.random() < 0.1:
            asked["extra_body"] = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
        return asked

    def whole(self, client: Any, random_: random.Random) -> str:
        asked = self.fields(random_)
        said = client.completions.create(**asked)
        return self.compare(asked, [choice.text for choice in said.choices])

    def stream(self, client: Any, random_: random.Random) -> str:
        asked = self.fields(random_)
        texts = [""] * asked.get("n", 1)
        for part in client.completions.create(**asked, stream=True):
            for choice in part.choices:
                texts[choice.index] += choice.text
        return self.compare({**asked, "stream": True}, texts)

    def compare(self, asked: dict[str, Any], texts: list[str]) -> str:
        """Note an answer; equal requests have equal ones."""
        with self.lock:
            first = self.answers.setdefault(json.dumps(asked, sort_keys=True), texts)
            if first != texts:
                self.wrong.append(f"{asked} got {texts} after {first}")
        return ""

    def leave(self, client: Any, random_: random.Random) -> str:
        """Read a few parts of a stream, and close the connection."""
        with client.completions.create(**{**self.fields(random_), "max_tokens": 400}, stream=True) as said:
            for _ in zip(range(random_.randrange(1, 6)), said, strict=False):
                pass
        return ""

    def give_up(self, client: Any, random_: random.Random) -> str:
        """Close the connection while the server decodes."""
        hasty = client.with_options(timeout=random_.choice((0.02, 0.1, 0.3)))
        with contextlib.suppress(openai.APITimeoutError):
            hasty.completions.create(**{**self.fields(random_), "max_tokens": 400})
        return ""

    def bad(self, client: Any, random_: random.Random) -> str:
        body = random_.choice(BAD)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        path = random_.choice(("completions", "chat/completions", "images/generations"))
        request = urllib.request.Request(f"{self.url}/{path}", content, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                raise AssertionError(f"{content!r} was answered with {answer.status}")
        except urllib.error.HTTPError as error:
            if error.code >= 500:
                raise AssertionError(f"{content!r} got {error.code}: {error.read()!r}") from None
            return str(error.code)

    def stall(self, client: Any, random_: random.Random) -> str:
        """Ask for a stream over a small buffer, and do not read it."""
        host, _, port = self.url.removeprefix("http://").removesuffix("/v1").partition(":")
        body = json.dumps({**self.fields(random_), "max_tokens": 400, "stream": True, "n": 4}).encode()
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            raw.connect((host, int(port)))
            head = ("POST /v1/completions HTTP/1.1", "host: x", "content-type: application/json")
            raw.sendall("\r\n".join((*head, f"content-length: {len(body)}", "", "")).encode() + body)
            time.sleep(random_.uniform(0.2, 4))
        return ""

    def figures(self) -> dict[str, float]:
        """Sums of the server's own figures, by name."""
        with urllib.request.urlopen(f"{self.url.removesuffix('/v1')}/metrics", timeout=60) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        sums: Counter[str] = Counter()
        for sample in (sample for family in families for sample in family.samples):
            sums[sample.name] += sample.value
            if sample.name == "mmspec_requests_total" and sample.labels["status"].startswith("5"):
                sums["errors"] += sample.value
        return dict(sums)


def soaked(url: str, model: str, clients: int, seconds: float, every: float) -> list[str]:
    """What does not hold; prints what was seen."""
    soak = Soak(url, model, seconds)
    threads = [threading.Thread(target=soak.client, args=(number,)) for number in range(clients)]
    memory = []
    for thread in threads:
        thread.start()
    while time.monotonic() < soak.until:
        time.sleep(min(every, max(0.0, soak.until - time.monotonic())))
        memory.append(soak.figures()["process_resident_memory_bytes"] / 2**20)
    for thread in threads:
        thread.join()
    faults = list(soak.wrong)
    patience = time.monotonic() + 60
    while (figures := soak.figures())["mmspec_texts_running"] + figures["mmspec_texts_waiting"]:
        if time.monotonic() > patience:
            faults.append("texts are still being written a minute after the last client has gone")
            break
        time.sleep(0.2)
    third = max(1, len(memory) // 3)
    middle, last = statistics.median(memory[third : 2 * third] or memory), statistics.median(memory[-third:])
    if last > 1.05 * middle + 20:
        faults.append(f"memory grows: {middle:.0f} MB, then {last:.0f} MB")
    if figures.get("errors", 0):
        faults.append(f"{figures['errors']:.0f} errors of the server's")
    for name, number in sorted(soak.seen.items()):
        print(f"{number:6d} {name}")
    print(f"{figures['mmspec_requests_total']:.0f} requests, {figures['mmspec_generated_tokens_total']:.0f} tokens")
    print(
        f"memory {middle:.0f} MB in the second third, {last:.0f} MB in the last; {len(soak.answers)} different requests"
    )
    print(f"memory every {every:g} s: {' '.join(f'{each:.0f}' for each in memory)}")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--model", default="mmspec/text-1m")
    parser.add_argument(
        "--url", help="of a server that runs, such as http://127.0.0.1:8000/v1; default: one is started"
    )
    asked, more = parser.parse_known_args()  # the rest is for `mmspec serve`
    with contextlib.ExitStack() as stack:
        url = asked.url
        if url is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url, _ = stack.enter_context(server(folder, asked.model, *(more or ("--method", "prompt-lookup"))))
        faults = soaked(url.rstrip("/"), asked.model, asked.clients, asked.seconds, every=5)
    for fault in faults[:20]:
        print(f"FAULT {fault[:500]}")
    print(f"{len(faults)} faults" if faults else "no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
