"""A recipe of a small model: a configuration, and the factors of its random weights (`mmspec.testing.tiny_models`)."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.support.random_models import random_model

VOCAB, CONTEXT, WINDOW = 131, 512, 12

COMMON: Mapping[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=CONTEXT,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)
"""Given to every configuration that knows the name; a recipe's own values win."""


SPREAD = 0.35
"""Of the matrices of a scaled model."""

_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


@dataclass(frozen=True)
class Recipe:
    """A small model of one architecture."""

    model_type: str  # key of transformers' `CONFIG_MAPPING`
    family: str  # what the architecture stands for among the others: `full`, `sliding`, `mixed`, …
    config: Mapping[str, Any] = field(default_factory=dict)  # values of its configuration beside `COMMON`
    gain: float = 8.0  # factor of the weight matrices; higher is sharper and more chaotic
    # factor of the output embedding; higher gives larger scores, and larger rounding errors with them
    head: float = 16.0
    embedding: float = 1.0  # factor of the input embedding; higher makes a text follow its last token
    salt: int = 0  # added to the seed, where that of 0 gives a near-tie or a text that stands still
    factors: Mapping[str, float] = field(default_factory=dict)  # part of a weight's name → one more factor
    alone: bool = False  # in a padded batch transformers counts the padding, so that only rows alone can be compared

    def configuration(self) -> PreTrainedConfig:
        """The configuration; nothing is downloaded."""
        kind = CONFIG_MAPPING[self.model_type]
        known = {*inspect.signature(kind.__init__).parameters, *kind.attribute_map, *_TOKENS}
        taken = {*self.config, *(name for name, own in kind.attribute_map.items() if own in self.config)}
        common = {name: value for name, value in COMMON.items() if name in known - taken}
        return kind(**{**common, "tie_word_embeddings": False, **self.config})

    def model(self, seed: int = 0) -> PreTrainedModel:
        """The model: float32, in evaluation mode, without an end-of-sequence token; the caller's seed is kept."""
        return random_model(
            self.configuration(),
            seed=seed + self.salt,
            gain=self.gain,
            head=self.head,
            embedding=self.embedding,
            factors=self.factors,
        )


@torch.no_grad()
def scaled(model: PreTrainedModel, spread: float = SPREAD) -> PreTrainedModel:
    """The same model with matrices of N(0, `spread`) and embeddings of N(0, 1): a wrong position writes another text.

    Attention is soft in weights as models initialise them, and says nearly the same from everywhere. What recurrent
    layers decay by stays as it is.
    """
    generator = torch.Generator().manual_seed(0)
    tables = {id(part.weight) for part in model.modules() if isinstance(part, torch.nn.Embedding)}
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and weight.is_floating_point() and "A_log" not in name:
            wide = 1.0 if id(weight) in tables else spread
            weight.copy_(torch.randn(weight.shape, generator=generator) * wide)
    return model
