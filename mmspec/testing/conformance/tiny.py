"""A tiny Llama with random weights: what the target `transformers`, and whatever needs one, is tried on.

Seven tokens, so that the exact joint of a few can be computed; nothing is downloaded.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mmspec.hosts.target import TransformersTarget
from mmspec.testing.conformance.example import Example
from tests.support.zoo.recipe import Recipe, noisy

VOCAB = 7
SIZES = dict(
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
)


@cache
def llama() -> Any:
    """The model."""
    return Recipe("llama", "full", SIZES, gain=8.0, head=8.0).model()


@cache
def small() -> Any:
    """A good draft model for it: its own weights, a little wrong."""
    return noisy(llama(), 0.1)


def prompt(rows: Sequence[int]) -> dict[str, Tensor]:
    """Texts of several lengths that repeat themselves, padded on the left."""
    lengths = [10 - 3 * (row % 3) for row in rows]
    longest = max(lengths)
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        generator = torch.Generator().manual_seed(row % 64)
        text = torch.randint(VOCAB, (5,), generator=generator).repeat(2)
        ids[i, longest - length :] = text[:length]
    mask = torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]
    return {"input_ids": ids, "attention_mask": mask.long()}


def again(units: Tensor, pads: Tensor) -> dict[str, Tensor]:
    """Known units as a prompt."""
    return {"input_ids": units, "attention_mask": (torch.arange(units.shape[1]) >= pads[:, None]).long()}


@cache
def transformers() -> Example:
    """Of the target `transformers`."""
    return Example(target=TransformersTarget(llama()), prompt=prompt, again=again)
