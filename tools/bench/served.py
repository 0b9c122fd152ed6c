"""`python -m tools.bench served`: clients of a server at the same time, and how much a server makes of their company.

Each server is a process of its own, with all threads of the machine; they take turns, a repeat each. A client asks one
request after the other, as streams, sampled, each with its own seed. CPU seconds are the server's: a machine may be
busy.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.request import urlopen

import openai
import typer

from mmspec.bench.timing import describe, versions
from mmspec.cli.places import refuse_unwritable
from mmspec.hosts.loading import locate
from mmspec.kits.text.bench.settings import held_out
from tools.report import lines

STOCK = "transformers, continuous batching"
SERVERS: Mapping[str, tuple[str, ...]] = {
    "one at a time, plain": ("--max-batch", "1", "--method", "plain"),
    "together, plain": ("--method", "plain"),
    "one at a time, auto": ("--max-batch", "1"),
    "together, auto": (),
    STOCK: (),
}
PORT = 18_000  # of the first server
READY = 300  # seconds that a server may take to load


@dataclass(frozen=True)
class Cell:
    """A server under some clients."""

    server: str
    model: str
    dtype: str
    clients: int
    requests: int
    tokens: int
    seconds: float
    cpu_seconds: float  # the server's
    first_token: float  # seconds, the median
    device: str = field(default_factory=lambda: describe("cpu"))
    versions: Mapping[str, str] = field(default_factory=versions)


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    process: int
    client: openai.OpenAI
    model: str

    @classmethod
    @contextmanager
    def by(cls, name: str, model: str, dtype: str, port: int) -> Iterator["Served"]:
        told = ("--port", str(port), "--dtype", dtype)
        if name == STOCK:
            command = ["transformers", "serve", model, "--continuous-batching", "--device", "cpu"]
            program = [str(Path(sys.executable).with_name(command[0])), *command[1:], *told]
        else:
            program = [sys.executable, "-m", "mmspec", "serve", model, *SERVERS[name], *told]
        process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _await(f"http://127.0.0.1:{port}/health", process)
            base = f"http://127.0.0.1:{port}/v1"
            yield cls(process.pid, openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=900), model)
        finally:
            process.terminate()
            process.wait(60)

    def cpu_seconds(self) -> float:
        """Of the process so far (Linux)."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, prompt: str, new: int, seed: int) -> tuple[int, float]:
        """The tokens of an answer, and the seconds to its first one."""
        began, first, tokens = time.perf_counter(), 0.0, 0
        message: Any = [{"role": "user", "content": prompt}]
        how: dict[str, Any] = {"max_tokens": new, "temperature": 0.8, "seed": seed, "stream": True}
        parts: Any = self.client.chat.completions.create(model=self.model, messages=message, **how)
        for part in parts:
            if part.choices and part.choices[0].delta.content:
                first = first or time.perf_counter() - began
            tokens = tokens + bool(part.choices) if part.usage is None else part.usage.completion_tokens
        return tokens, first


def _await(url: str, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + READY
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server behind {url} ended with {process.returncode}")
        try:
            with urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"nothing answers at {url}")


def measured(
    served: Served, name: str, model: str, dtype: str, *, clients: int, prompts: Sequence[str], new: int
) -> Cell:
    """Let so many clients ask all prompts, each the next one that is left."""
    cpu, began = served.cpu_seconds(), time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda number: served.ask(prompts[number], new, number), range(len(prompts))))
    seconds, cpu = time.perf_counter() - began, served.cpu_seconds() - cpu
    tokens, first = sum(tokens for tokens, _ in answers), statistics.median(first for _, first in answers)
    return Cell(name, model, dtype, clients, len(prompts), tokens, seconds, cpu, first)


def served(
    model: Annotated[str, typer.Option(help="A language model with a chat template.")] = "smollm2",
    dtype: Annotated[str, typer.Option(help="Of the weights.")] = "bfloat16",
    clients: Annotated[list[int] | None, typer.Option(help="At a time; repeatable.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Of all clients together, in a repeat.")] = 16,
    new_tokens: Annotated[int, typer.Option(min=1, help="Most of an answer.")] = 64,
    repeats: Annotated[int, typer.Option(min=1)] = 1,
    only: Annotated[list[str] | None, typer.Option(help=f"Servers: {', '.join(SERVERS)}.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="A file that gets a line each.")] = None,
) -> None:
    """Tokens a second of clients at the same time, by server."""
    refuse_unwritable(json_file)
    beginnings = [text[:200] for text in held_out()["prose"]]
    asked = [f"Go on with this text:\n{beginnings[n % len(beginnings)]} ({n})" for n in range(requests)]
    cells = list[Cell]()
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(Served.by(name, str(locate(model)), dtype, PORT + number))
            for number, name in enumerate(only or SERVERS)
        }
        for each in running.values():
            each.ask(asked[0], 8, 0)
        for _ in range(repeats):
            for count in clients or (1, 8):
                for name, each in running.items():
                    cell = measured(each, name, model, dtype, clients=count, prompts=asked, new=new_tokens)
                    typer.echo(
                        f"{name:36} {count:3} clients: {cell.tokens / cell.seconds:6.1f} tokens a second, "
                        f"{cell.tokens / cell.cpu_seconds:6.1f} a CPU second, first token {cell.first_token:.2f} s"
                    )
                    cells.append(cell)
    if json_file is not None:
        lines.save_lines(json_file, cells)
