"""What a language model answers, on a lane of noise of its own: no generator of torch moves."""

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from mmspec.api.generation import runner
from mmspec.core.decoder import Decoder
from mmspec.core.report import Report


def answer(
    model: Any,
    decoder: Decoder,
    inputs: Mapping[str, Any],
    generate: Mapping[str, Any],
    seed: int,
    on_report: Callable[[Report], None],
) -> Tensor:
    """The ids that a model writes behind one prompt.

    Args:
        model: The live model.
        decoder: The model's decoder.
        inputs: The prompt, as the model's `generate` takes it: `input_ids [1, prompt]` and what belongs to them.
        generate: Further arguments of `generate`.
        seed: Of its noise.
        on_report: Called with the counts and times.

    Returns:
        `[new]` int64.
    """
    run = runner(lambda model: decoder, on_report, noise="philox", seed=seed)
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        ids: Tensor = model.generate(**inputs, **generate, custom_generate=run)
    return ids[0, inputs["input_ids"].shape[1] :]


def lane(purpose: str, seed: int, number: object) -> int:
    """The seed of one answer's noise, below 2^63: a hash of what it is for, a seed, and which answer it is."""
    drawn = blake2b(f"{purpose}/{seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big") >> 1
