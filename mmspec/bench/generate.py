"""transformers' own `generate` as a contestant: eager, with its static cache compiled, with its assistants."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import CompileConfig, GenerationConfig

from mmspec.bench.race import Run
from mmspec.bench.timing import called


@dataclass(frozen=True)
class GenerateCall:
    """A call of `generate`, the same for all contestants."""

    model: Any  # the target
    new: int  # the number of tokens to emit
    temperature: float  # the temperature; 0 is greedy
    seed: int  # the seed of torch's generator, set before every call
    ends: bool = False  # whether a text may end before; else no token ends it, and all contestants emit that number

    def __call__(self, inputs: Mapping[str, Tensor], **more: Any) -> tuple[float, list[Tensor]]:
        """Seconds, and the new tokens of every row."""
        sampling = {"do_sample": True, "temperature": self.temperature, "top_k": 0} if self.temperature else {}
        endless = {} if self.ends else {"eos_token_id": None}
        how = {"max_new_tokens": self.new, "do_sample": False, **endless, **sampling, **more}
        torch.manual_seed(self.seed)
        seconds, ids = called(lambda: self.model.generate(**inputs, **how), str(self.model.device))
        return seconds, list(ids[:, inputs["input_ids"].shape[1] :].cpu())


@dataclass
class PeerGenerate:
    call: GenerateCall  # how `generate` is called
    more: Mapping[str, Any] = field(default_factory=dict)  # further arguments of `generate`
    # Entries of the assistant's generation configuration, from which transformers reads them
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Run:
        with _configured(self.more.get("assistant_model"), self.settings):
            return Run(*self.call(inputs, **self.more))


@dataclass
class CompiledGenerate:
    """transformers' own `generate` with a static cache and compiled steps."""

    call: GenerateCall  # how `generate` is called
    config: CompileConfig  # how steps are compiled

    def __call__(self, inputs: Mapping[str, Tensor]) -> Run:
        """A run of it; refuses steps that transformers did not compile, which is no error there."""
        run = Run(*self.call(inputs, cache_implementation="static", compile_config=self.config))
        model = self.call.model
        if "_compiled_call" not in vars(model):  # where transformers keeps the compiled step
            raise ValueError(f"transformers does not compile {type(model).__name__} with a static cache")
        return run


def compiled(call: GenerateCall) -> CompiledGenerate:
    return CompiledGenerate(call, _compiled())


@contextmanager
def _configured(model: Any, settings: Mapping[str, Any]) -> Iterator[None]:
    """Inside the block, the model's generation configuration has these entries."""
    if not settings:
        yield
        return
    own = model.generation_config
    model.generation_config = GenerationConfig.from_dict({**own.to_dict(), **settings})
    try:
        yield
    finally:
        model.generation_config = own


@cache
def _compiled() -> CompileConfig:
    """A configuration shared by all settings, because transformers compiles again for another object. Weights are not
    frozen: the static cache's own length would be, too, and the second call reads out of bounds.
    """
    config = CompileConfig(fullgraph=False)
    config._compile_all_devices = True  # by default transformers compiles on accelerators only
    return config
