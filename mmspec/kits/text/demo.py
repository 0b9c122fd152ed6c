"""`mmspec demo` of language models: they write Python and Shakespeare, plainly and speculatively, in one run."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

from mmspec.bench.generate import GenerateCall, PeerGenerate
from mmspec.bench.race import Track, race
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.kits.text.bench.contestants import OurMethod
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


def run_demo(target: str, methods: Mapping[str, Mapping[str, Any]] = METHODS) -> None:
    """Print, for each prompt and method, the first lines, acceptance length and speed-up over plain."""
    logging.disable_progress_bar()
    console = terminal.terminal()
    model, tokenizer = load_model(target), load_tokenizer(target)
    drafters = {name: load_model(name) for name in {o["drafter"] for o in methods.values() if "drafter" in o}}
    live = {m: {**o, **({"drafter": drafters[o["drafter"]]} if "drafter" in o else {})} for m, o in methods.items()}
    for title, prompt in PROMPTS.items():
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        for temperature in (0.0, 0.8):
            call = GenerateCall(model, NEW_TOKENS, temperature, seed=0)
            ours = {name: OurMethod(call, {"method": name, **options}) for name, options in live.items()}
            tracks = race({"transformers": PeerGenerate(call), **ours}, [dict(inputs)], REPEATS)
            how = f"temperature {temperature}, seed 0" if temperature else "greedy"
            terminal.line(console, f"\n{title}, {how}", "bold underline")
            for names, new in _by_text(tracks):
                terminal.line(console, f"{', '.join(names)} wrote:", "bold")
                terminal.line(console, _first_lines(tokenizer.decode(torch.cat([inputs["input_ids"][0], new]))))
            terminal.table(console, COLUMNS, _numbers(tracks), whole=("method",), boxed=True)


def _by_text(tracks: Mapping[str, Track]) -> list[tuple[list[str], Tensor]]:
    """The different texts, each with the names of the methods that wrote it."""
    texts: list[tuple[list[str], Tensor]] = []
    for name, track in tracks.items():
        (new,) = track.median[0].units
        for names, text in texts:
            if torch.equal(text, new):
                names.append(name)
                break
        else:
            texts.append(([name], new))
    return texts


def _numbers(tracks: Mapping[str, Track]) -> Iterator[tuple[str, ...]]:
    plain = statistics.median(tracks["plain"].repeats_s)
    for name, track in tracks.items():
        seconds, report = statistics.median(track.repeats_s), track.median[0].report
        exactness, length = (report.exactness, f"{report.acceptance_length:.2f}") if report else ("", "")
        yield name, exactness, length, f"{seconds:.2f}", f"{plain / seconds:.2f}"


def _first_lines(text: str) -> str:
    lines = text.splitlines()
    return "\n".join(lines[:SHOWN_LINES] + (["…"] if len(lines) > SHOWN_LINES else []))
