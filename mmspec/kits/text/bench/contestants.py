"""The contestants: our methods through `mmspec.enable`, and transformers' own ways of decoding the same prompts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import mmspec
from mmspec.bench.generate import GenerateCall, PeerGenerate, compiled
from mmspec.bench.race import Contestant, Run

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


def peers(call: GenerateCall, drafter: Any) -> dict[str, PeerSettings]:
    """transformers' `generate`, with its static cache compiled, its prompt lookup, its assistant."""
    eager, static, lookup, assistant = PEERS
    draft = {"assistant_model": drafter}
    return {
        eager: PeerSettings({"": PeerGenerate(call)}),
        static: PeerSettings({"": compiled(call)}, "static cache, compiled"),
        lookup: PeerSettings({name: PeerGenerate(call, more) for name, more in GRIDS[lookup].items()}),
        assistant: PeerSettings(
            {name: PeerGenerate(call, draft, entries) for name, entries in GRIDS[assistant].items()}, "assistant_model"
        ),
    }
