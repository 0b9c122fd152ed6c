"""Diversity of sampled texts, method by method, beside the spread of plain decoding from seed to seed.

All methods, plain decoding too, decode the same prompts with the same seeds: under an invariant rule every text is
plain decoding's. Nothing is timed.
"""

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.api.build import decoder_for
from mmspec.bench.methods import decoder_arguments
from mmspec.bench.timing import describe, versions
from mmspec.core.decoder import Decoder, Output
from mmspec.core.warp import Warp
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.kits.text.bench.settings import GIVEN, held_out
from mmspec.kits.text.language import encoded
from mmspec.registry.printable import shown
from mmspec.report.result import PLAIN
from mmspec.untrusted import numbered_json_lines
from tools.bench.diversity.figures import figures
from tools.cards.diversity import Diversity

KINDS = ("titles", "hypotheses")
"""Places where prompts end: a function of Python up to the opening quotes of its docstring, whose first line is its
title; verse up to the first words of a supposition, "If I" or "What if he".
"""
FLIPS = "flips"
"""The kind of prompts about papers: a model that answers questions is given what is believed (the Bit), and asked for a
chain of reasoning, a Spark of a few words, and the Flip: what could be done instead (HypoGen, arXiv 2504.12976).
"""
FIELDS = ("bit", "flip", "spark", "chain_of_reasoning")
"""Texts of a line of such data, in the layout of UniverseTBD/hypogen-dr1; it may have others."""
ASKED = (
    "Bit, which is what people in a field of research believe, and where it falls short:\n{bit}\n\nReason step by step "
    "towards a hypothesis that turns it around. Then write its Spark, in four to six words, and the Flip: what to do "
    "instead, and why that helps."
)
MOST = 1 << 28  # most bytes of a file of data
_TITLE = re.compile(r'^ *def [^\n]+:\n +"""', re.MULTILINE)
_HYPOTHESIS = re.compile(r"^(?:What if|If|Were|Suppose) +\w+", re.MULTILINE)


@dataclass(frozen=True)
class Size:
    """The size of the measurement."""

    prompts: int = 6  # most prompts of a kind
    outputs: int = 8  # outputs of a prompt under one set of seeds, at least 2
    sets: int = 8  # sets of seeds, at least 2
    new: int = 32  # tokens of an output
    temperature: float = 1.0  # of sampling


@torch.no_grad()
def measure(
    model: str,
    methods: Mapping[str, Mapping[str, Any]],
    size: Size = Size(),
    device: str = "cpu",
    tick: Callable[[], None] = lambda: None,
    bits: Sequence[str] = (),
) -> list[Diversity]:
    """Decode all prompts with all methods.

    Args:
        model: The target's name.
        methods: Methods by label, with their options. An option `method` names the method if the label does not, an
            option `drafter` a draft model.
        size: How much is decoded.
        device: Where.
        tick: Called after every method on a kind of prompts.
        bits: What is asked about instead of prompts that the shipped models go on with, of a model that answers.

    Returns:
        A cell for every kind of prompts and method, plain decoding first.

    Raises:
        ValueError: A method does not fit the model.
    """
    target, tokenizer = load_model(model, device), load_tokenizer(model)
    every = {PLAIN: decoder_for(target, PLAIN)}
    for name, options in methods.items():
        drafter = {"drafter": load_model(options["drafter"], device)} if "drafter" in options else {}
        every[name] = decoder_for(target, **decoder_arguments({"method": name, **options, **drafter}))
    made = partial(
        Diversity,
        model=model,
        temperature=size.temperature,
        outputs=size.outputs,
        units=size.new,
        device=describe(device),
        versions=versions(),
    )
    cells = []
    for kind, given in _prompts(tokenizer, size.prompts, bits).items():
        plain: list[Output] = []
        for name, decoder in every.items():
            decoded = [_decoded(decoder, ids.to(device), number, size) for number, ids in _sets(given, size.sets)]
            plain = plain or decoded
            cell = made(method=name, exactness=decoder.rule.exactness, kind=kind, prompts=len(given))
            cells.append(replace(cell, options=dict(methods.get(name, {})), **_found(decoded, plain, size.sets)))
            tick()
    return cells


def read_bits(file: Path) -> list[str]:
    """The Bits of a file of JSON lines in the layout of HypoGen; refuses a line that lacks one of its fields."""
    found = []
    for number, line in numbered_json_lines(file, MOST):
        if lacking := [name for name in FIELDS if not isinstance(line.get(name), str) or not line[name].strip()]:
            raise ValueError(
                f"line {number} of {shown(file)} has no {', '.join(lacking)}: a line has the texts {FIELDS}"
            )
        found.append(line["bit"].strip())
    if not found:
        raise ValueError(f"{shown(file)} has no lines: each is JSON with the texts {FIELDS}")
    return found


def _prompts(tokenizer: Any, most: int, bits: Sequence[str]) -> dict[str, list[Tensor]]:
    """Prompts `[1, unit]` by their kind."""
    if bits:
        asked = [[{"role": "user", "content": ASKED.format(bit=bit)}] for bit in bits[:most]]
        return {FLIPS: [encoded(messages, tokenizer)["input_ids"] for messages in asked]}
    return {
        kind: [tokenizer(text, return_tensors="pt")["input_ids"][:, -GIVEN:] for text in texts[:most]]
        for kind, texts in branching_prompts(held_out()).items()
    }


def branching_prompts(pieces: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Prompts from which many texts lead on, by kind, at most one from a piece."""
    places = (_TITLE, pieces["code"]), (_HYPOTHESIS, pieces["prose"])
    found = [[piece[: match.end()] for piece in texts if (match := place.search(piece))] for place, texts in places]
    return dict(zip(KINDS, found, strict=True))


def _sets(prompts: Sequence[Tensor], sets: int) -> Iterator[tuple[int, Tensor]]:
    """Every prompt once for each set of seeds, sets first, numbered through."""
    yield from enumerate(ids for _ in range(sets) for ids in prompts)


def _decoded(decoder: Decoder, ids: Tensor, number: int, size: Size) -> Output:
    """The outputs of a prompt `[1, prompt]` under the seeds of this number."""
    rows = ids.expand(size.outputs, -1)
    seeds = list(range(number * size.outputs, (number + 1) * size.outputs))
    inputs, warp = {"input_ids": rows, "attention_mask": torch.ones_like(rows)}, Warp.sampling(size.temperature)
    return decoder.generate(inputs, size.new, seed=seeds, warp=warp)


def _found(decoded: Sequence[Output], plain: Sequence[Output], sets: int) -> dict[str, Any]:
    """What a cell says of its outputs."""
    by_prompt = [figures([row.tolist() for row in output.units]) for output in decoded]
    prompts = len(by_prompt) // sets
    by_set = [by_prompt[i : i + prompts] for i in range(0, len(by_prompt), prompts)]
    pairs = [
        pair for ours, theirs in zip(decoded, plain, strict=True) for pair in zip(ours.units, theirs.units, strict=True)
    ]
    reports = [output.report for output in decoded]
    biases = [report.bias.tv for report in reports if report.bias is not None]
    return {
        "figures": {
            name: [statistics.fmean(each[name] for each in group) for group in by_set] for name in by_prompt[0]
        },
        "same": statistics.fmean(torch.equal(*pair) for pair in pairs),
        "acceptance_length": sum(r.emitted - r.rows for r in reports) / sum(r.row_rounds for r in reports),
        "bias": statistics.fmean(biases) if biases else None,
    }
