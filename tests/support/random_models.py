"""Tiny models of transformers with random weights, made from a configuration; nothing is downloaded.

Weights as models initialise them give flat scores and a text that repeats its last token. Here matrices are scaled
until attention and experts decide what comes next, the embedding stays small beside them, and whatever starts out
constant (norms, biases, sinks, gates, corrections of a router) is made random: a host that forgets one of them writes
another text.
"""

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from mmspec.testing.tiny_models import llama


def random_model(
    config: PreTrainedConfig,
    *,
    seed: int = 0,
    gain: float = 8.0,
    head: float = 16.0,
    embedding: float = 1.0,
    factors: Mapping[str, float] | None = None,
    auto: Any = AutoModelForCausalLM,
) -> PreTrainedModel:
    """A model in float32, in evaluation mode, without an end-of-sequence token; torch's generator is left as it was.

    `gain` multiplies weight matrices (higher is sharper and more chaotic), `head` the output embedding (larger scores,
    with larger rounding errors), `embedding` the input embedding (a text follows its last token), and `factors` parts
    of the model by name. `auto` is the class of transformers that makes the model.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model: PreTrainedModel = auto.from_config(config, dtype=torch.float32, trust_remote_code=False).eval()
        _enliven(model, gain, head, embedding)
        for name, weight in model.state_dict().items():
            for part, factor in (factors or {}).items():
                weight.mul_(factor if part in name else 1)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def _enliven(model: PreTrainedModel, gain: float, head: float, embedding: float) -> None:
    """Scale matrices and make constants random, from torch's generator."""
    outer = {id(end.weight) for end in (model.get_input_embeddings(), model.get_output_embeddings()) if end is not None}
    for name, weight in model.state_dict(keep_vars=True).items():
        if not weight.is_floating_point() or weight.numel() == 0 or id(weight) in outer:
            continue
        if "sink" in name:
            weight.copy_(torch.randn_like(weight))
        elif bool((weight == weight.flatten()[0]).all()):
            weight.add_(torch.randn_like(weight) * 0.1)
        elif weight.dim() > 1:
            weight.mul_(gain)
    model.get_input_embeddings().weight.mul_(embedding)
    if model.get_output_embeddings() is not None:
        model.get_output_embeddings().weight.mul_(head)


def noisy(model: PreTrainedModel, amount: float) -> PreTrainedModel:
    """A good draft model: a copy whose weights are off by `amount` of their own standard deviation."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for weight in other.parameters():
            if weight.numel() > 1 and weight.is_floating_point():
                weight.add_(torch.randn(weight.shape, generator=generator).to(weight.device) * amount * weight.std())
    return other


@cache
def small() -> Any:
    """A good draft model for `llama()`."""
    return noisy(llama(), 0.1)
