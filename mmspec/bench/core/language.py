"""Workloads of language models of transformers: attention, experts, recurrent."""

from typing import Any

import torch
import transformers
from torch import Tensor

from mmspec.bench.core.shape import Workload

FIRST = 3
"""The smallest id of a prompt: smaller ones are padding, begin and end of a text."""


def language(device: torch.device, dtype: torch.dtype, *, config: str, **numbers: Any) -> Workload:
    """A causal language model with random weights.

    Args:
        device: The device on which the weights are made.
        dtype: The dtype in which they are made.
        config: Name of a configuration class of transformers.
        **numbers: Arguments of that class.
    """
    settings = getattr(transformers, config)(**numbers, bos_token_id=1, eos_token_id=None, pad_token_id=0)
    torch.manual_seed(0)
    with torch.device(device):
        made = transformers.AutoModelForCausalLM.from_config(settings, dtype=dtype, trust_remote_code=False)
    model = made.eval().requires_grad_(False)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return of_model(model)


def of_model(model: Any) -> Workload:
    """A live causal language model as a workload."""
    config = model.config.get_text_config(decoder=True)

    def prompt(rows: int, context: int) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.randint(FIRST, config.vocab_size, (rows, context), generator=generator).to(model.device)

    return Workload(model, prompt, _slot(config))


def _slot(config: Any) -> int:
    """Keys and values of one unit over all layers; a recurrent state does not grow with the context."""
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return 0
    kinds = getattr(config, "layer_types", None) or ["attention"] * config.num_hidden_layers
    layers = sum("attention" in kind and "linear" not in kind for kind in kinds)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * layers * (getattr(config, "num_key_value_heads", None) or heads) * width)
