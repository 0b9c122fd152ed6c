"""The contestants: our methods through `mmspec.enable`, and transformers' own ways of decoding the same prompts.

A batch is compared with its rows one by one: the same prompts and method, under a policy that may draft nothing.
llama.cpp decodes them, too, from GGUF files of the same model (extra `llama-cpp`): weights of fewer bits and other
kernels write another text, so that what is compared is the time of as many tokens.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mmspec
from mmspec.bench.generate import GenerateCall, PeerGenerate, compiled
from mmspec.bench.race import Contestant, Run, race
from mmspec.bench.rows import row_of
from mmspec.bench.timing import called
from mmspec.core.report import Report
from mmspec.kits.text.bench.settings import BATCHED, BenchOptions, Subject, batch, named
from mmspec.report.result import PLAIN, Row

PACKAGE = "xllamacpp"
CONTEXT = 4096  # units of the longest prompt with its answer
NGRAMS: Mapping[str, tuple[int, int] | None] = {
    "no drafts": None,
    "drafts of 5 behind n-grams of 3": (3, 5),
    "drafts of 10 behind n-grams of 3": (3, 10),
}
"""Its own speculation, which looks n-grams up: their units, and the units of a draft."""


@dataclass(frozen=True)
class LlamaCpp:
    """llama.cpp with a file, and with drafts or without; a `Contestant` for prompts of one row."""

    call: GenerateCall
    file: Path
    ngram: tuple[int, int] | None

    def __call__(self, inputs: Mapping[str, Tensor]) -> Run:
        """A run of it."""
        engine, call = _engine(self.file, self.ngram, torch.get_num_threads()), self.call
        asked: dict[str, Any] = {
            "prompt": inputs["input_ids"][0].tolist(),
            "max_tokens": call.new,
            "ignore_eos": True,
            "temperature": call.temperature,
            "seed": call.seed,
            "cache_prompt": False,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "return_tokens": True,
            "verbose": True,  # else the answer has no ids
        }
        seconds, answer = called(lambda: engine.handle_completions(asked), "cpu")
        units = torch.tensor(answer.get("__verbose", {}).get("tokens", []), dtype=torch.int64)
        if len(units) != call.new:
            raise ValueError(f"llama.cpp wrote {len(units)} of {call.new} tokens: {answer.get('error', 'no error')}")
        return Run(seconds, [units])


def refuse(files: Sequence[Path]) -> None:
    """Refuse files that there are not, before anything is loaded."""
    for file in files:
        if not file.is_file():
            raise ValueError(f"there is no file {file}; --gguf takes GGUF files of the model, joined by commas")
        with file.open("rb") as opened:
            if opened.read(4) != b"GGUF":
                raise ValueError(f"{file} is no GGUF file")
    if files and find_spec(PACKAGE) is None:
        raise ValueError(f"llama.cpp is run by the package {PACKAGE}: pip install 'mmspec[llama-cpp]'")


@cache
def _engine(file: Path, ngram: tuple[int, int] | None, threads: int) -> Any:
    """An engine that has loaded the file. It listens on a port of this machine, and nothing of ours calls it there."""
    import xllamacpp as engine

    how = engine.CommonParams()
    how.model.path, how.n_ctx, how.n_parallel, how.verbosity = str(file), CONTEXT, 1, -1
    how.cpuparams.n_threads = how.cpuparams_batch.n_threads = threads
    if ngram is not None:
        how.speculative.types = [engine.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        how.speculative.ngram_simple.size_n, how.speculative.ngram_simple.size_m = ngram
    return engine.Server(how)


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
