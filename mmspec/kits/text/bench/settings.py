"""The settings of a benchmark: subject, methods, sizes, prompts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmspec import shipped
from mmspec.kits.text.bench.defaults import BATCH, NEW, PROMPTS, QUICK_NEW, QUICK_PROMPTS, QUICK_REPEATS, REPEATS
from mmspec.kits.text.language import asked, encoded
from mmspec.report.result import PLAIN

DRAFTER = "mmspec/text-1m"  # the draft model of all shipped language models, which share its tokenizer
TEMPERATURES = (0.0, 0.8)
GIVEN = 160  # tokens of a prompt
HELD_OUT = "held_out.json"
"""The file of held-out text beside the shipped text target: pieces of Python's standard library (Python Software
Foundation License 2.0) and of Shakespeare (public domain) that no shipped model was trained on.
"""
OWN = "prompts"  # the kind of a user's own prompts
SHARE = 1  # the number of prompts on which peers choose their settings

_TREE = {"k": 3, "drafter": DRAFTER, "width": 3, "nodes": 7}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "prompt-lookup": {"k": 7},
    "suffix": {"k": 10},
    "token-recycling": {"k": 6, "nodes": 7},
    "draft-model": {"k": 2, "drafter": DRAFTER},
    "draft-tree": _TREE,
    "rsd": {"k": 3, "drafter": DRAFTER, "width": 2},
    "cascade": {"k": 6, "budget": 128},
    "auto": {},
    "compiled plain": {"method": PLAIN, "compile": True},
    "compiled prompt-lookup": {"method": "prompt-lookup", "k": 5, "compile": True},
    "compiled draft-tree": {"method": "draft-tree", **_TREE, "compile": True},
}
"""Methods with options that are fast on two cores; a method that is not listed runs with its defaults."""
BATCHED = ("prompt-lookup", "suffix", "auto")
"""Methods that are tried on a batch, under the policy `goodput`, which may choose not to draft."""


@dataclass(frozen=True)
class Subject:
    kind: str  # the kind of the result, as in `Result`
    target: str
    # The default methods by label, with their options. An option `method` names the method if the label does not; an
    # option `drafter` is replaced by the live draft model.
    methods: Mapping[str, Mapping[str, Any]]
    drafter: str = DRAFTER

    def drafted_by(self, drafter: str) -> "Subject":
        own = {"drafter": drafter}
        methods = {label: {**how, **(own if "drafter" in how else {})} for label, how in self.methods.items()}
        return replace(self, methods=methods, drafter=drafter)


@dataclass(frozen=True)
class BenchOptions:
    prompts: int = PROMPTS  # the number of prompts of each kind of text
    new: int = NEW  # tokens of each output
    repeats: int = REPEATS  # counted repeats
    batch: int = BATCH  # rows of the batch that is compared with its rows alone; 0 leaves it out
    seed: int = 0  # the seed of torch's generator, set before every call
    dtype: str | None = None  # of the weights; None: float32
    files: tuple[Path, ...] = ()  # GGUF files of the same model, with which llama.cpp runs beside

    @property
    def quick(self) -> "BenchOptions":
        """The short form: all methods on fewer and shorter texts, one at a time."""
        prompts, new = min(self.prompts, QUICK_PROMPTS), min(self.new, QUICK_NEW)
        return replace(self, prompts=prompts, new=new, repeats=min(self.repeats, QUICK_REPEATS), batch=0)


def named(text: str, temperature: float) -> str:
    return f"{text}, {f'T = {temperature:g}' if temperature else 'greedy'}"


def held_out() -> dict[str, list[str]]:
    """Held-out pieces by kind of text: `code` and `prose`."""
    pieces: dict[str, list[str]] = json.loads((shipped.asset("text-14m") / HELD_OUT).read_text())
    return pieces


def texts(tokenizer: Any, own: Sequence[Any] | None = None) -> dict[str, list[Tensor]]:
    """Held-out texts, or a user's own prompts (`mmspec.bench.methods.read`), `[1, length]` each, by kind."""
    if own is not None:
        return {OWN: [encoded(asked(prompt, tokenizer), tokenizer)["input_ids"] for prompt in own]}
    return {
        kind: [torch.tensor([tokenizer(piece, truncation=True)["input_ids"]]) for piece in pieces]
        for kind, pieces in held_out().items()
    }


def prompts(pieces: Sequence[Tensor], count: int, device: str, given: int | None = GIVEN) -> list[dict[str, Tensor]]:
    """The first `given` tokens of the first `count` texts, one prompt each; None: all tokens."""
    return [left_padded([piece[0, :given]], device) for piece in pieces[:count]]


def batch(pieces: Sequence[Tensor], rows: int, device: str) -> dict[str, Tensor]:
    """Prompts of several lengths in one batch, padded on the left."""
    return left_padded([piece[0, : GIVEN - 7 * i] for i, piece in enumerate(pieces[:rows])], device)


def left_padded(rows: Sequence[Tensor], device: str) -> dict[str, Tensor]:
    ids, mask = (pad_sequence(each, True, 0, "left") for each in ([*rows], [torch.ones_like(row) for row in rows]))
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
