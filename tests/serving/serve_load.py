"""Many clients at once at `mmspec serve`: wrong rows, what the server holds on to, and how long requests take.

By hand: `python -m tests.serving.serve_load mmspec/text-1m 32 20 1000` (model, clients, requests of each, and requests
between the two readings of memory). Every answer is compared with plain decoding of the same seed in this process. A
tenth of the requests is cancelled, half of these as streams, half by a time limit of the client's.
"""

import contextlib
import random
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai

from mmspec.shipped import asset
from mmspec.untrusted import read_json
from tests.support.serving import Plain, server

CANCELLED = 0.1
KINDS = 48
"""Different requests; plain decoding answers each once."""


@dataclass(frozen=True)
class Asked:
    """One request, and what it has to get."""

    prompt: str
    new: int
    temperature: float
    seed: int

    @classmethod
    def drawn(cls, number: int) -> "Asked":
        random_ = random.Random(number)
        held_out = read_json(asset("text-14m") / "held_out.json")
        prose = random_.choice([text for kind in ("code", "prose") for text in held_out[kind]])
        length, new = random_.choice([20, 80, 300, 700]), random_.choice([4, 16, 48, 128])
        return cls(prose[:length], new, random_.choice([0.0, 0.8]), number)

    def fields(self, model: str) -> dict[str, Any]:
        named = {"prompt": self.prompt, "max_tokens": self.new, "temperature": self.temperature, "seed": self.seed}
        return {"model": model, **named}


@dataclass
class Seen:
    """The answers that the clients saw."""

    seconds: list[float] = field(default_factory=list)
    wrong: list[Asked] = field(default_factory=list)
    cancelled: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def report(self) -> str:
        ends = statistics.quantiles(self.seconds, n=100)
        return (
            f"{len(self.seconds)} answers, {len(self.wrong)} wrong, {self.cancelled} cancelled; "
            f"p50 {ends[49]:.2f} s, p95 {ends[94]:.2f} s"
        )


class Load:
    """Clients of one server.

    Args:
        url: The server's address.
        model: The model's name.
    """

    def __init__(self, url: str, model: str) -> None:
        plain = Plain(model)
        self.model, self.url = model, url
        self.asked = [Asked.drawn(number) for number in range(KINDS)]
        sampled = [{"do_sample": True, "temperature": a.temperature} if a.temperature else {} for a in self.asked]
        ids = [plain.ids(a.prompt, a.new, a.seed, **how) for a, how in zip(self.asked, sampled, strict=True)]
        self.texts = {a: (plain.text(i), plain.streamed(i)) for a, i in zip(self.asked, ids, strict=True)}

    def run(self, clients: int, requests: int) -> Seen:
        """`clients` at once, each of which asks `requests` times, one after the other."""
        seen = Seen()
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(lambda number: self._client(number, requests, seen), range(clients)))
        return seen

    def _client(self, number: int, requests: int, seen: Seen) -> None:
        random_ = random.Random(1000 + number)
        client = openai.OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=600)
        for _ in range(requests):
            asked = random_.choice(self.asked)
            if random_.random() < CANCELLED:
                self._cancel(client, asked, random_.random() < 0.5)
                with seen.lock:
                    seen.cancelled += 1
                continue
            began, stream = time.perf_counter(), random_.random() < 0.5
            text = self._text(client, asked, stream)
            with seen.lock:
                seen.seconds.append(time.perf_counter() - began)
                if text != self.texts[asked][stream]:
                    seen.wrong.append(asked)
        client.close()

    def _text(self, client: Any, asked: Asked, stream: bool) -> str:
        said = client.completions.create(**asked.fields(self.model), stream=stream)
        return "".join(part.choices[0].text for part in said) if stream else said.choices[0].text

    def _cancel(self, client: Any, asked: Asked, stream: bool) -> None:
        if stream:
            with client.completions.create(**asked.fields(self.model), stream=True) as said:
                next(iter(said))
            return
        with contextlib.suppress(openai.APITimeoutError):
            client.with_options(timeout=0.2).completions.create(**asked.fields(self.model))


def held(process: int) -> tuple[float, int]:
    """The holdings of a process: megabytes of memory, and threads (Linux)."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return int(found["VmRSS"].split()[0]) / 1024, int(found["Threads"])


def main(model: str, clients: int, requests: int, more: int) -> None:
    """Print what was seen."""
    with tempfile.TemporaryDirectory() as folder, server(Path(folder), model) as (url, process):
        load = Load(url, model)
        print(load.run(clients, requests).report(), flush=True)
        before = held(process)
        print(load.run(clients, -(-more // clients)).report(), flush=True)
        after = held(process)
        print(f"memory {before[0]:.0f} MB, then {after[0]:.0f} MB; threads {before[1]}, then {after[1]}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
