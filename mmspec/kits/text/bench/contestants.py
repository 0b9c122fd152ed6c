"""The contestants: our methods through `mmspec.enable`, and transformers' own ways of decoding the same prompts.

A batch is compared with its rows one by one: the same prompts and method, under a policy that may draft nothing.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mmspec
from mmspec.bench.generate import GenerateCall, PeerGenerate, compiled
from mmspec.bench.race import Contestant, Run, race
from mmspec.bench.rows import row_of
from mmspec.core.report import Report
from mmspec.kits.text.bench.llama_cpp import NGRAMS, LlamaCpp
from mmspec.kits.text.bench.settings import BATCHED, BenchOptions, Subject, batch, named
from mmspec.report.result import PLAIN, Row

PEERS = ("generate", "generate, compiled", "generate, prompt lookup", "generate, assistant")
GRIDS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "generate, prompt lookup": {
        f"prompt_lookup_num_tokens={n}": {"prompt_lookup_num_tokens": n} for n in (10, 7, 5, 3)
    },
    "generate, assistant": {
        "its own schedule": {},
        **{
            f"num_assistant_tokens={n}, constant": {
                "num_assistant_tokens": n,
                "num_assistant_tokens_schedule": "constant",
                "assistant_confidence_threshold": 0.0,
            }
            for n in (2, 3, 5)
        },
    },
}
"""Settings of peers, by name: arguments of `generate`, or the assistant's configuration. The fastest one is used."""


@dataclass
class OurMethod:
    """One of our methods, enabled anew for every call, so that a drafter remembers nothing of earlier ones."""

    call: GenerateCall  # how `generate` is called
    options: Mapping[str, Any]  # the arguments of `mmspec.enable`.
    # Receives prompt and output by prompt, for the oracle; or None
    plain_of: dict[tuple[int, ...], list[int]] | None = None

    def __call__(self, inputs: Mapping[str, Tensor]) -> Run:
        with mmspec.enable(self.call.model, **self.options) as spec:
            seconds, units = self.call(inputs)
        if self.plain_of is not None:
            for prompt, row in zip(inputs["input_ids"].tolist(), units, strict=True):
                self.plain_of[tuple(prompt)] = prompt + row.tolist()
        return Run(seconds, units, spec.report)


@dataclass(frozen=True)
class PeerSettings:
    """A peer with all its settings, of which the fastest is to be chosen."""

    # Contestants by the names of their settings; a single one named "" if there is nothing to choose
    ways: Mapping[str, Contestant]
    note: str = ""  # A note for the reader of the result


def peers(call: GenerateCall, drafter: Any, files: Sequence[Path] = ()) -> dict[str, PeerSettings]:
    """transformers' `generate`, with its static cache compiled, its prompt lookup, its assistant; and llama.cpp, with
    these GGUF files.
    """
    eager, static, lookup, assistant = PEERS
    draft = {"assistant_model": drafter}
    return {
        eager: PeerSettings({"": PeerGenerate(call)}),
        static: PeerSettings({"": compiled(call)}, "static cache, compiled"),
        lookup: PeerSettings({name: PeerGenerate(call, more) for name, more in GRIDS[lookup].items()}),
        assistant: PeerSettings(
            {name: PeerGenerate(call, draft, entries) for name, entries in GRIDS[assistant].items()}, "assistant_model"
        ),
        **{
            f"llama.cpp, {file.name}": PeerSettings(
                {name: LlamaCpp(call, file, ngram) for name, ngram in NGRAMS.items()}, "another engine"
            )
            for file in files
        },
    }


def batch_rows(
    call: GenerateCall,
    subject: Subject,
    methods: Mapping[str, Mapping[str, Any]],
    kind: str,
    pieces: Sequence[Tensor],
    options: BenchOptions,
    tick: Callable[[], None],
) -> list[Row]:
    """Result rows for one batch, prompts of several lengths from the beginnings of texts, under the methods in
    `BATCHED`. The quality `same_as_alone` is the share of rows of the batch whose output equals the row's alone,
    and `alone_repeats_s` has the seconds of the rows one after the other.
    """
    inputs = batch(pieces, options.batch, str(call.model.device))
    batched = {PLAIN: OurMethod(call, {"method": PLAIN})}
    batched |= {m: OurMethod(call, {"method": m, **o, "policy": "goodput"}) for m, o in methods.items() if m in BATCHED}
    alone = {f"{name}, alone": partial(_one_by_one, contestant) for name, contestant in batched.items()}
    tracks = race({**batched, **alone}, [inputs], options.repeats, tick=tick)
    rows = []
    for name in batched:
        together, apart = tracks[name], tracks[f"{name}, alone"]
        equal = [torch.equal(a, b) for a, b in zip(together.median[0].units, apart.median[0].units, strict=True)]
        quality = {"same_as_alone": statistics.mean(equal)}
        how: dict[str, Any] = {"method": name, "setting": named(kind, 0.0), "batch": len(equal), "quality": quality}
        own = {} if name == PLAIN else {**subject.methods.get(name, {}), "policy": "goodput"}
        row = row_of(together, tracks[PLAIN], **how)
        rows.append(replace(row, options=own, alone_repeats_s=apart.repeats_s))
    return rows


def _one_by_one(contestant: OurMethod, inputs: Mapping[str, Tensor]) -> Run:
    """A run over the rows of a batch one by one, without their padding."""
    rows = [ids[mask.bool()][None] for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)]
    runs = [contestant({"input_ids": row, "attention_mask": torch.ones_like(row)}) for row in rows]
    return Run(sum(run.seconds for run in runs), [run.units[0] for run in runs], Report())
