"""The contestants: our methods through `mmspec.enable`, and transformers' own ways of decoding the same prompts."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import CompileConfig, GenerationConfig

import mmspec
from mmspec.bench.limits import synchronize
from mmspec.bench.race import Contestant, Run
from mmspec.bench.stand_ins import Oracle, Parrot
from mmspec.core.policies import Fixed

PEERS = ("generate", "generate, compiled", "generate, prompt lookup", "generate, assistant")
STAND_INS = ("oracle", "synthetic", "empty")
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


@dataclass(frozen=True)
class GenerateCall:
    """A call of `generate`, the same for all contestants.

    Attributes:
        model: The target.
        new: The number of tokens to emit; there is no end-of-text token, so that all contestants emit this number.
        temperature: The temperature; 0 is greedy.
        seed: The seed of torch's generator, set before every call.
    """

    model: Any
    new: int
    temperature: float
    seed: int

    def __call__(self, inputs: Mapping[str, Tensor], **more: Any) -> tuple[float, list[Tensor]]:
        """Seconds, and the new tokens of every row."""
        device = str(self.model.device)
        sampling = {"do_sample": True, "temperature": self.temperature, "top_k": 0} if self.temperature else {}
        torch.manual_seed(self.seed)
        synchronize(device)
        began = time.perf_counter()
        ids = self.model.generate(
            **inputs, max_new_tokens=self.new, eos_token_id=None, **{"do_sample": False, **sampling, **more}
        )
        synchronize(device)
        seconds = time.perf_counter() - began
        return seconds, list(ids[:, inputs["input_ids"].shape[1] :].cpu())


@dataclass
class OurMethod:
    """One of our methods, enabled anew for every call, so that a drafter remembers nothing of earlier ones.

    Attributes:
        call: How `generate` is called.
        options: The arguments of `mmspec.enable`.
        plain_of: Receives prompt and output by prompt, for the oracle; or None.
    """

    call: GenerateCall
    options: Mapping[str, Any]
    plain_of: dict[tuple[int, ...], list[int]] | None = None

    def __call__(self, inputs: Mapping[str, Tensor]) -> Run:
        with mmspec.enable(self.call.model, **self.options) as spec:
            seconds, units = self.call(inputs)
        if self.plain_of is not None:
            for prompt, row in zip(inputs["input_ids"].tolist(), units, strict=True):
                self.plain_of[tuple(prompt)] = prompt + row.tolist()
        return Run(seconds, units, spec.report)


@dataclass
class PeerGenerate:
    """transformers' own `generate`.

    Attributes:
        call: How `generate` is called.
        more: Further arguments of `generate`.
        settings: Entries of the assistant's generation configuration, from which transformers reads them.
    """

    call: GenerateCall
    more: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Run:
        with _configured(self.more.get("assistant_model"), self.settings):
            return Run(*self.call(inputs, **self.more))


@dataclass
class CompiledGenerate:
    """transformers' own `generate` with a static cache and compiled steps.

    Attributes:
        call: How `generate` is called.
        config: How steps are compiled.
    """

    call: GenerateCall
    config: CompileConfig

    def __call__(self, inputs: Mapping[str, Tensor]) -> Run:
        """A run of it.

        Raises:
            ValueError: transformers ran its steps without compiling them, which is no error there.
        """
        run = Run(*self.call(inputs, cache_implementation="static", compile_config=self.config))
        model = self.call.model
        if "_compiled_call" not in vars(model):  # where transformers keeps the compiled step
            raise ValueError(f"transformers does not compile {type(model).__name__} with a static cache")
        return run


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


@dataclass(frozen=True)
class PeerSettings:
    """A peer with all its settings, of which the fastest is to be chosen.

    Attributes:
        ways: Contestants by the names of their settings; a single one named "" if there is nothing to choose.
        note: A note for the reader of the result.
    """

    ways: Mapping[str, Contestant]
    note: str = ""


def peers(call: GenerateCall, drafter: Any) -> dict[str, PeerSettings]:
    """transformers' `generate`, with its static cache compiled, its prompt lookup, its assistant."""
    eager, compiled, lookup, assistant = PEERS
    draft = {"assistant_model": drafter}
    return {
        eager: PeerSettings({"": PeerGenerate(call)}),
        compiled: PeerSettings({"": CompiledGenerate(call, _compiled())}, "static cache, compiled"),
        lookup: PeerSettings({name: PeerGenerate(call, more) for name, more in GRIDS[lookup].items()}),
        assistant: PeerSettings(
            {name: PeerGenerate(call, draft, entries) for name, entries in GRIDS[assistant].items()}, "assistant_model"
        ),
    }


@cache
def _compiled() -> CompileConfig:
    """A configuration shared by all settings, because transformers compiles again for another object.

    Weights are not frozen (inductor's `freezing`): the static cache's own length would be frozen with them, and the
    second call reads out of bounds.
    """
    config = CompileConfig(fullgraph=False)
    config._compile_all_devices = True  # by default transformers compiles on accelerators only
    return config


def stand_ins(
    call: GenerateCall, truth: dict[tuple[int, ...], list[int]], k: int, rate: float
) -> dict[str, Contestant]:
    """Contestants that bound the loop: an oracle, synthetic acceptance, and rounds without drafts.

    Args:
        call: How `generate` is called.
        truth: Prompt and plain output by prompt, for the oracle.
        k: Units drafted per round.
        rate: The synthetic acceptance rate.
    """
    oracle, synthetic, empty = STAND_INS
    return {
        oracle: OurMethod(call, {"drafter": Oracle(truth), "k": k}),
        synthetic: OurMethod(call, {"drafter": Parrot(), "rule": "synthetic", "rate": rate, "k": k}),
        empty: OurMethod(call, {"method": "prompt-lookup", "k": k, "policy": Fixed(0)}),
    }
