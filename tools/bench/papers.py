"""`python -m tools.bench papers`: a measured row for methods of papers, with the papers' own numbers.

A row is a workload and some methods on it. All decode the same prompts, greedily if not said otherwise, in turns; a
method's decoder lives as long as its row, so that it remembers earlier prompts. Seconds are CPU seconds of the process:
a machine may be busy. Methods that count their memory run once more in a process of their own, whose peak is read.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from json import dumps as json_of
from pathlib import Path
from typing import Annotated, Any, TypeVar

import accelerate
import torch
import typer
from torch import Tensor

from mmspec.api import prompt_enhancer
from mmspec.api.build import decoder_for
from mmspec.bench.methods import decoder_arguments
from mmspec.bench.timing import describe, versions
from mmspec.cli.places import refuse_unwritable
from mmspec.core.decoder import Decoder, Output
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.hosts.devices import dtype_of
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.kits.text.bench.settings import DRAFTER, GIVEN, held_out
from mmspec.kits.text.language import encoded
from mmspec.registry.suggest import unknown
from mmspec.report.result import PLAIN
from mmspec_zoo.conditioned.counterfactual import divergence, swapped
from tools.report import lines

GREEDY = Warp(sample=False)
Each = TypeVar("Each")
TASKS = (
    "Write a Python function that returns the longest word of a text.",
    "Write a Python function that counts how often each word occurs in a text.",
)
STEPS = (
    "The test failed. Write the whole function again.",
    "Good. Write the final version.",
)


@dataclass(frozen=True)
class Cell:
    """A method in a row."""

    row: str
    model: str
    dtype: str
    method: str
    options: Mapping[str, Any]
    prompts: int
    tokens: int  # of all outputs
    passes: int  # of the target
    acceptance_length: float  # tokens a pass, a row's first token apart
    drafted: int  # nodes
    cpu_seconds: float  # of decoding, prompts and drafts included
    plain_cpu_seconds: float  # the same of plain decoding, in turns with it
    same: float  # share of the outputs that are plain decoding's
    figures: Mapping[str, float] = field(default_factory=dict)  # of the row alone, by name
    device: str = field(default_factory=lambda: describe("cpu"))
    versions: Mapping[str, str] = field(default_factory=versions)
    threads: int = field(default_factory=torch.get_num_threads)


@dataclass(frozen=True)
class Row:
    """A workload and its methods, by label; an option `method` names the method if the label does not."""

    model: str
    methods: Mapping[str, Mapping[str, Any]]
    prompts: Callable[[Decoder, Any, int], Iterator[Tensor]]  # `[1, length]` each, of plain decoding and a tokenizer
    new: int
    dtype: str = "float32"
    temperature: float = 0.0
    on_disk: bool = False  # whether the target's weights are on the disk, and each is loaded for its part of a pass
    # Figures that a row has beside those of all: of its model's name, a method's options, its prompts and its outputs
    figures: Callable[["Row", Mapping[str, Any], Sequence[Tensor], Sequence[Output]], Mapping[str, float]] = (
        lambda row, how, prompts, outputs: {}
    )


def conversations(plain: Decoder, tokenizer: Any, new: int) -> Iterator[Tensor]:
    """The questions of an agent that tries again and again, each with all that was said before. Every task is begun
    anew once, as a run that failed is.
    """
    for task in (task for task in TASKS for _ in range(2)):
        said = [{"role": "user", "content": task}]
        for step in STEPS:
            ids = encoded(said, tokenizer)["input_ids"]
            yield ids
            answer = tokenizer.decode(plain.generate(_inputs(ids), new, warp=GREEDY).units[0], skip_special_tokens=True)
            said += [{"role": "assistant", "content": answer}, {"role": "user", "content": step}]
        yield encoded(said, tokenizer)["input_ids"]


def code(plain: Decoder, tokenizer: Any, new: int) -> Iterator[Tensor]:
    """The beginnings of held-out code."""
    for text in held_out()["code"][:6]:
        yield tokenizer(text, return_tensors="pt")["input_ids"][:, :GIVEN]


PICTURES = ("a cat on a red chair", "an old lighthouse in a storm", "a market at dawn", "a robot that paints")


def rewriting(plain: Decoder, tokenizer: Any, new: int) -> Iterator[Tensor]:
    """What the prompt enhancer tells a model, the aspect included."""
    for prompt in PICTURES:
        said = (prompt_enhancer.TEMPLATE + prompt_enhancer.ASKED).replace(prompt_enhancer.PLACE, prompt)
        yield encoded([{"role": "user", "content": said}], tokenizer)["input_ids"]


SWAPS = (("king", "queen"), ("man", "woman"), ("son", "daughter"), ("brother", "sister"), ("lord", "lady"))
CLAUSE = "All are equal, and none is above another by birth. "
ASKED = (
    "What says the king? The king",
    "A man of honour is he. This man",
    "Here comes my son. My son",
    "Thou art my brother, and a brother",
    "Speak, my lord. The lord",
    "Tell me, what is a man? A man",
)


def identities(plain: Decoder, tokenizer: Any, new: int) -> Iterator[Tensor]:
    """Prompts about somebody, each followed by the same one about somebody else."""
    for text in ASKED:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        yield ids
        yield swapped(SWAPS, tokenizer)(ids, torch.zeros(1, dtype=torch.int64))["input_ids"]


NEEDLES = ("Alice", "Bruno", "Chloe", "David", "Emma", "Felix", "Grace", "Henry")
HAY = 40
"""Words of each of the pieces of held-out prose between which a needle lies, of which there are `PIECES`."""
PIECES = 12


def needles(plain: Decoder, tokenizer: Any, new: int) -> Iterator[Tensor]:
    """Questions about a sentence that stands somewhere in a text about something else, with such a sentence about
    somebody else.
    """
    words = " ".join(held_out()["prose"]).split()
    for number, name in enumerate(NEEDLES):
        first = number * PIECES * HAY % (len(words) - PIECES * HAY)
        hay = [" ".join(words[first + HAY * n : first + HAY * (n + 1)]) for n in range(PIECES)]
        for away, who in ((0, name), (5, NEEDLES[number - 1])):
            hay[(number + away) % PIECES] += f"\nThe secret number of {who} is {_secret(number + away)}.\n"
        text = "\n".join([*hay, f"\nQuestion: What is the secret number of {name}?"])
        yield encoded([{"role": "user", "content": text}], tokenizer)["input_ids"]


def _secret(number: int) -> int:
    return 10_000 + 7_919 * (number + 1) % 89_989


def found(row: Row, how: Mapping[str, Any], prompts: Sequence[Tensor], outputs: Sequence[Output]) -> dict[str, float]:
    """The share of questions about needles whose answer has the right number."""
    tokenizer = load_tokenizer(row.model)
    said = [tokenizer.decode(out.units[0]).replace(",", "") for out in outputs]
    right = [str(_secret(number)) in answer for number, answer in enumerate(said)]
    return {
        "right answers": sum(right) / len(right),
        "prompt tokens": sum(ids.shape[1] for ids in prompts) / len(prompts),
    }


SHORT: Mapping[str, Any] = {"chunk": 64, "chunks": 4, "end": 64}
"""What is retrieved of prompts that are shorter than those of the paper."""


def bias(row: Row, how: Mapping[str, Any], prompts: Sequence[Tensor], outputs: Sequence[Output]) -> dict[str, float]:
    """How much a text depends on who a prompt is about: the mean divergence, in nats, of what the target says next
    behind the two prompts of a pair, before each unit of the first one's text; and the share of pairs with one text.
    """
    target, apart = load_model(row.model, "cpu"), list[Tensor]()
    for (one, other), (out, _) in zip(in_pairs(prompts), in_pairs(outputs), strict=True):
        said = [target(torch.cat([ids, out.units[0][None]], 1)).logits[0, ids.shape[1] :] for ids in (one, other)]
        apart.append(divergence(*said))
    same = [_same(one, other) for one, other in in_pairs(outputs)]
    return {"bias, nats": float(torch.cat(apart).mean()), "pairs with one text": sum(same) / len(same)}


LONG = 4_096
"""Tokens of a long text."""
SLOTS = (256, 1_024, 4_096, 8_160)
"""Slots of caches over which passes are timed; a model's context is 8,192."""


def long_text(plain: Decoder, tokenizer: Any, new: int) -> Iterator[Tensor]:
    """The beginning of all held-out prose and code, in one text."""
    text = "\n".join([*held_out()["prose"], *held_out()["code"]])
    yield tokenizer(text, return_tensors="pt")["input_ids"][:, :LONG]


def by_slots(
    row: Row, how: Mapping[str, Any], prompts: Sequence[Tensor], outputs: Sequence[Output]
) -> dict[str, float]:
    """Passes over the target's own weights beside those that verify, for each of these; and of plain decoding, CPU
    milliseconds of a pass of one node and of seven, by the slots of its cache: the least of some.
    """
    report = outputs[0].report
    if report.inner_passes:
        return {"prompt tokens": prompts[0].shape[1], "drafting passes a pass": report.inner_passes / report.rounds}
    target = decoder_for(load_model(row.model, "cpu", dtype_of(row.dtype)), PLAIN).target
    started, units = target.start(_inputs(prompts[0][:, :8]), SLOTS[-1], 8), prompts[0]
    slots, found = started.cache.slots, dict[str, float]()
    for length, nodes in product(SLOTS, (1, 7)):
        draft = Draft.chain(units[:, 1:nodes]).rooted(units[:, 0], torch.tensor([nodes]))
        slots.set_length(torch.tensor([length]))
        seconds = []
        for _ in range(7):
            began = time.process_time()
            target.verify(started.cache, draft)
            seconds.append(time.process_time() - began)
        found[f"ms a pass of {nodes}, {length} slots"] = 1e3 * min(seconds)
    return found


WEIGHTS, WHOLE = 120_484_224, 14_833_664
"""Bytes of text-14m, text-1m and packed copies of both; what a call takes beside them, without a budget that binds."""


def budgeted(
    row: Row, how: Mapping[str, Any], prompts: Sequence[Tensor], outputs: Sequence[Output]
) -> dict[str, float]:
    """Megabytes that a budget has, that were counted, and that a process of its own had at its peak, which decodes the
    first prompt a second time.
    """
    counted = outputs[0].report.memory_bytes
    if counted is None:
        return {}
    given = {
        "model": row.model,
        "how": dict(how),
        "ids": prompts[0].tolist(),
        "new": row.new,
        "temperature": row.temperature,
    }
    quiet = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    run = [sys.executable, "-m", "tools.bench.peak", json_of(given)]
    peak = float(subprocess.run(run, env=quiet, capture_output=True, text=True, check=True).stdout.split()[-1])
    return {"MB budget": how["memory_budget"] / 1e6, "MB counted": counted / 1e6, "MB peak": peak / 1e6}


def at_once(row: Row, how: Mapping[str, Any], prompts: Sequence[Tensor], outputs: Sequence[Output]) -> dict[str, float]:
    """Megabytes of the target's weights, and of those that are in memory at once: of the module that has most."""
    target = load_model(row.model, "cpu")
    own = [sum(p.nbytes for p in module.parameters(recurse=False)) for module in target.modules()]
    return {"MB of weights": sum(p.nbytes for p in target.parameters()) / 1e6, "MB at once": max(own) / 1e6}


ROWS: Mapping[str, Row] = {
    "suffix, an agent": Row(
        "smollm2",
        {
            "suffix": {"k": 32},
            "suffix, every call by itself": {"method": "suffix", "k": 32, "remember": 0},
        },
        conversations,
        new=48,
        dtype="bfloat16",
    ),
    "trees of the papers' sizes": Row(
        "mmspec/text-14m",
        {
            "token-recycling": {"k": 6, "nodes": "released"},
            "token-recycling, 8 nodes": {"method": "token-recycling", "k": 6},
            "rsd": {"drafter": DRAFTER, "k": 5, "width": 6},
            "dyspec": {"drafter": DRAFTER},
            "bild": {"drafter": DRAFTER},
        },
        code,
        new=96,
    ),
    "rasd, a head and the text": Row(
        "mmspec/text-14m",
        {
            "rasd": {"model": "mmspec/text-14m-eagle3", "k": 10},
            "eagle": {"model": "mmspec/text-14m-eagle3", "k": 5},
            "prompt-lookup": {"k": 10},
        },
        code,
        new=96,
    ),
    "specmemo, three budgets": Row(
        "mmspec/text-14m",
        {
            f"specmemo, {share} % of what calls take": {
                "method": "specmemo",
                "drafter": DRAFTER,
                "k": 8,
                "nodes": 128,
                "memory_budget": WEIGHTS + share * WHOLE // 100,
            }
            for share in (100, 60, 40)
        },
        code,
        new=95,
        temperature=1.0,
        figures=budgeted,
    ),
    "ambedkar, pairs of identities": Row(
        "mmspec/text-14m",
        {
            "the verifier alone": {"method": "ambedkar", "drafter": DRAFTER, "condition": CLAUSE, "k": 2},
            **{
                f"ambedkar, {n} proposals": {
                    "method": "ambedkar",
                    "drafter": DRAFTER,
                    "condition": CLAUSE,
                    "k": 2,
                    "rule": "counterfactual",
                    "swap": SWAPS,
                    "proposals": n,
                }
                for n in (2, 4, 8)
            },
        },
        identities,
        new=24,
        figures=bias,
    ),
    "llmcad, a target on the disk": Row(
        "mmspec/text-14m",
        {"llmcad": {"drafter": DRAFTER, "k": 8}, "draft-model": {"drafter": DRAFTER, "k": 4}},
        code,
        new=32,
        on_disk=True,
        figures=at_once,
    ),
    "triforce, a long text": Row(
        "smollm2",
        {
            "triforce": {},
            "triforce, 1024 slots": {"method": "triforce", "budget": 1024},
            "triforce, 256 slots": {"method": "triforce", "budget": 256},
        },
        long_text,
        new=32,
        dtype="bfloat16",
        figures=by_slots,
    ),
    "triforce, a draft model": Row(
        "mmspec/text-14m",
        {
            "triforce": {"drafter": DRAFTER, "budget": 128, "inner_k": 2},
            "triforce, without a model": {"method": "triforce", "budget": 128},
        },
        code,
        new=96,
        figures=lambda row, how, prompts, outputs: {
            "drafting passes a pass": sum(out.report.inner_passes for out in outputs)
            / sum(out.report.rounds for out in outputs)
        },
    ),
    "prompt tokens, by each tree": Row(
        "mmspec/text-14m",
        {
            "ppd": {"model": "mmspec/text-14m-ppd"},
            "ppd, every node with all of them": {"method": "ppd", "model": "mmspec/text-14m-ppd", "form": "rerank"},
        },
        code,
        new=24,
    ),
    "rapid, needles": Row(
        "smollm2",
        {f"rapid, η = {eta:g}": {"method": "rapid", **SHORT, "eta": eta} for eta in (0.0, 1.0, 10.0)},
        needles,
        new=18,
        dtype="bfloat16",
        figures=found,
    ),
    "prompt enhancer": Row(
        "smollm2",
        {
            "suffix": {},
            "prompt-lookup": {"k": 8},
            "token-recycling": {},
            "eagle": {"model": "mmspec/smollm2-eagle3", "k": 5},
        },
        rewriting,
        new=96,
        temperature=0.6,
    ),
    "early exits, of a model that was not trained for them": Row(
        "mmspec/text-14m", {"layer-skip": {}, "del": {}}, code, new=96
    ),
}


@torch.no_grad()
def measured(name: str, row: Row, new: int) -> list[Cell]:
    """The cells of a row."""
    warp = Warp.sampling(row.temperature)
    target, tokenizer = load_model(row.model, "cpu", dtype_of(row.dtype)), load_tokenizer(row.model)
    if row.on_disk:
        target.requires_grad_(False)
        accelerate.disk_offload(target, tempfile.mkdtemp(), torch.device("cpu"))
    small = load_model(DRAFTER, "cpu") if any("drafter" in how for how in row.methods.values()) else None
    every = {PLAIN: decoder_for(target, PLAIN)}
    for label, how in row.methods.items():
        own = {"drafter": small} if "drafter" in how else {}
        every[label] = decoder_for(target, **decoder_arguments({"method": label, **how, **own}))
    seconds, outputs = dict.fromkeys(every, 0.0), {label: list[Output]() for label in every}
    prompts = list(row.prompts(every[PLAIN], tokenizer, new))
    for ids in prompts:
        for label, decoder in every.items():
            began = time.process_time()
            outputs[label].append(decoder.generate(_inputs(ids), new, seed=0, warp=warp))
            seconds[label] += time.process_time() - began
    return [
        Cell(
            name,
            row.model,
            row.dtype,
            label,
            dict(row.methods.get(label, {})),
            len(prompts),
            acceptance_length=tokens_a_pass(outs),
            passes=sum(out.report.rounds for out in outs),
            drafted=sum(out.report.drafted for out in outs),
            tokens=sum(len(out.units[0]) for out in outs),
            cpu_seconds=round(seconds[label], 2),
            plain_cpu_seconds=round(seconds[PLAIN], 2),
            same=sum(map(_same, outs, outputs[PLAIN])) / len(outs),
            figures=rounded(row.figures(row, row.methods.get(label, {}), prompts, outs)),
        )
        for label, outs in outputs.items()
    ]


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """Figures of four digits."""
    return {name: float(f"{value:.4g}") for name, value in figures.items()}


def tokens_a_pass(outputs: Sequence[Output]) -> float:
    """Tokens behind the first, over the passes that brought them."""
    passes = sum(out.report.rounds for out in outputs)
    return round(sum(len(out.units[0]) - 1 for out in outputs) / max(passes, 1), 3)


def papers(
    row: Annotated[str | None, typer.Option(help="Rows, joined by semicolons; default: all.")] = None,
    json: Annotated[Path | None, typer.Option(help="Where the cells go, a line each; other rows there stay.")] = None,
    new_tokens: Annotated[int | None, typer.Option(min=4, max=512, help="Tokens of an output.")] = None,
) -> None:
    """Measure rows of docs/papers.md: acceptance and CPU seconds, beside plain decoding."""
    refuse_unwritable(json)
    names = list(ROWS) if row is None else row.split(";")
    for name in names:
        if name not in ROWS:
            raise ValueError(unknown("row", name, list(ROWS)))
    for name in names:
        cells = measured(name, ROWS[name], new_tokens or ROWS[name].new)
        for cell in cells:
            speed = cell.plain_cpu_seconds / max(cell.cpu_seconds, 1e-9)
            own = "".join(f" | {figure} {value:g}" for figure, value in cell.figures.items())
            typer.echo(f"{name} | {cell.method} | {cell.acceptance_length:.2f} a pass | {speed:.2f} x plain{own}")
        if json is not None:
            there = lines.load_lines(json, Cell, "tools.bench papers", lambda _: None) if json.exists() else []
            lines.save_lines(json, [*(cell for cell in there if cell.row != name), *cells])


def in_pairs(values: Sequence[Each]) -> Iterator[tuple[Each, Each]]:
    """Values in pairs."""
    return zip(values[::2], values[1::2], strict=True)


def _inputs(ids: Tensor) -> dict[str, Tensor]:
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _same(one: Output, other: Output) -> bool:
    return one.units[0].tolist() == other.units[0].tolist()
