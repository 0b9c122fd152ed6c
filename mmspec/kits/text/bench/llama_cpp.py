"""llama.cpp as a contestant: another engine that decodes the same prompts from GGUF files of the same model.

It needs the extra `llama-cpp`. Weights of fewer bits and other kernels write another text, so that what is compared is
the time of as many tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.generate import GenerateCall
from mmspec.bench.race import Run
from mmspec.bench.timing import called

PACKAGE = "xllamacpp"
CONTEXT = 4096
"""Units of the longest prompt with its answer."""
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
