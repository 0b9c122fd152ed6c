"""`mmspec demo` of language models: they write Python and Shakespeare, plainly and speculatively, in one run."""

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

import mmspec
from mmspec.core.report import Report
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.report import terminal

PROMPTS = {
    "Python": 'class Stack:\n    """A list."""\n\n    def __init__(self):\n        self._items = []\n\n    def push(',
    "Shakespeare": "KING RICHARD II:\nWhat say you, cousin? Shall we ",
}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "prompt-lookup": {"k": 6},
    "draft-model": {"drafter": "mmspec/text-1m", "k": 4},
}
"""The methods of every demo with their options; a draft model is given by its name."""
COLUMNS = ("method", "exactness", "acceptance length", "seconds", "speed-up over plain")
NEW_TOKENS, REPEATS, SHOWN_LINES = 120, 3, 8


@dataclass
class Timed:
    """One method on one prompt."""

    ids: Tensor  # prompt and output, `[1, length]`
    seconds: list[float]  # the seconds of each repeat
    report: Report | None  # the report of the last call; None for transformers' own `generate`


def run_demo(target: str, methods: Mapping[str, Mapping[str, Any]] = METHODS) -> None:
    """Print, for each prompt and method, the first lines, acceptance length and speed-up over plain."""
    logging.disable_progress_bar()
    console = terminal.terminal()
    model, tokenizer = load_model(target), load_tokenizer(target)
    drafters = {name: load_model(name) for name in {o["drafter"] for o in methods.values() if "drafter" in o}}
    live = {m: {**o, **({"drafter": drafters[o["drafter"]]} if "drafter" in o else {})} for m, o in methods.items()}
    for title, prompt in PROMPTS.items():
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        for sampling in ({"do_sample": False}, {"do_sample": True, "temperature": 0.8, "top_k": 0}):
            rows = _race(model, live, dict(inputs), sampling)
            how = f"temperature {sampling['temperature']}, seed 0" if sampling["do_sample"] else "greedy"
            terminal.line(console, f"\n{title}, {how}", "bold underline")
            for names, ids in _by_text(rows):
                terminal.line(console, f"{', '.join(names)} wrote:", "bold")
                terminal.line(console, _first_lines(tokenizer.decode(ids)))
            terminal.table(console, COLUMNS, _numbers(rows), whole=("method",), boxed=True)


def _race(
    model: Any, methods: dict[str, dict[str, Any]], inputs: dict[str, Tensor], sampling: dict[str, Any]
) -> dict[str, Timed]:
    """Run all methods and transformers' own `generate` in turns; the first repeat is not counted."""
    rows: dict[str, Timed] = {}
    for repeat in range(REPEATS + 1):
        for name, options in {"transformers": None, **methods}.items():
            ids, seconds, report = _run(model, name, options, inputs, sampling)
            row = rows.setdefault(name, Timed(ids, [], report))
            if repeat:
                row.seconds.append(seconds)
    return rows


def _run(
    model: Any, name: str, options: dict[str, Any] | None, inputs: dict[str, Tensor], sampling: dict[str, Any]
) -> tuple[Tensor, float, Report | None]:
    def once() -> tuple[Tensor, float]:
        torch.manual_seed(0)
        began = time.perf_counter()
        ids = model.generate(**inputs, max_new_tokens=NEW_TOKENS, eos_token_id=None, **sampling)
        return ids, time.perf_counter() - began

    if options is None:
        return *once(), None
    with mmspec.enable(model, name, **options) as spec:
        return *once(), spec.report


def _by_text(rows: dict[str, Timed]) -> list[tuple[list[str], Tensor]]:
    """The different texts, each with the names of the methods that wrote it."""
    texts: list[tuple[list[str], Tensor]] = []
    for name, row in rows.items():
        for names, ids in texts:
            if torch.equal(ids, row.ids[0]):
                names.append(name)
                break
        else:
            texts.append(([name], row.ids[0]))
    return texts


def _numbers(rows: dict[str, Timed]) -> Iterator[tuple[str, ...]]:
    plain = statistics.median(rows["plain"].seconds)
    for name, row in rows.items():
        seconds = statistics.median(row.seconds)
        exactness, length = (row.report.exactness, f"{row.report.acceptance_length:.2f}") if row.report else ("", "")
        yield name, exactness, length, f"{seconds:.2f}", f"{plain / seconds:.2f}"


def _first_lines(text: str) -> str:
    lines = text.splitlines()
    return "\n".join(lines[:SHOWN_LINES] + (["…"] if len(lines) > SHOWN_LINES else []))
