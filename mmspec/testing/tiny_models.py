"""The conformance kit's model: a Llama of seven tokens, few enough that the exact joint of several can be computed.

The kit tries the target `transformers`, and drafters with a model of their own, on it.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from mmspec.hosts.target import TransformersTarget
from mmspec.testing.conformance.example import Example

VOCAB = 7
SIZES: Mapping[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    max_position_embeddings=512,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
    tie_word_embeddings=False,
)
"""Configuration values of the kit's models."""


@cache
def llama() -> Any:
    """The Llama. Its matrices are scaled until attention decides what comes next, and its norms are random."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        config = LlamaConfig(**SIZES)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False).eval()
        for weight in (*model.model.layers.parameters(), model.model.norm.weight):
            if weight.dim() > 1:
                weight.mul_(8)
            else:
                weight.add_(torch.randn_like(weight) * 0.1)
        model.lm_head.weight.mul_(8)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def prompt(rows: Sequence[int]) -> dict[str, Tensor]:
    """Texts of several lengths that repeat themselves, padded on the left."""
    lengths = [10 - 3 * (row % 3) for row in rows]
    longest = max(lengths)
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        generator = torch.Generator().manual_seed(row % 64)
        text = torch.randint(VOCAB, (5,), generator=generator).repeat(2)
        ids[i, longest - length :] = text[:length]
    return again(ids, longest - torch.tensor(lengths))


def again(units: Tensor, pads: Tensor) -> dict[str, Tensor]:
    """Units `[batch, known]` behind `pads [batch]` of padding, as a prompt."""
    return {"input_ids": units, "attention_mask": (torch.arange(units.shape[1]) >= pads[:, None]).long()}


@cache
def transformers() -> Example:
    """The example of the target `transformers`."""
    return Example(target=TransformersTarget(llama()), prompt=prompt, again=again)
