"""How a small model is made of a recipe: a configuration, random weights that decide, a drafter that is a little wrong.

Weights as models initialise them give flat scores and a text that repeats its last token. Here matrices are scaled
until attention and experts decide what comes next, the embedding stays small beside them, input and output embeddings
are not tied, and whatever starts out constant (norms, biases, sinks, gates, corrections of a router) is made random, so
that a host that forgets one of them writes another text.
"""

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

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
    """A small model of one architecture.

    Attributes:
        model_type: Key of transformers' `CONFIG_MAPPING`.
        family: What the architecture stands for among the others: `full`, `sliding`, `mixed`, …
        config: Values of its configuration beside `COMMON`.
        gain: Factor of the weight matrices; higher is sharper and more chaotic.
        head: Factor of the output embedding; higher gives larger scores, and larger rounding errors with them.
        embedding: Factor of the input embedding; higher makes a text follow its last token.
        salt: Added to the seed, where that of 0 gives a near-tie or a text that stands still.
        factors: Part of a weight's name → one more factor.
        alone: In a padded batch transformers counts the padding, so that only rows alone can be compared.
    """

    model_type: str
    family: str
    config: Mapping[str, Any] = field(default_factory=dict)
    gain: float = 8.0
    head: float = 16.0
    embedding: float = 1.0
    salt: int = 0
    factors: Mapping[str, float] = field(default_factory=dict)
    alone: bool = False

    def configuration(self) -> PreTrainedConfig:
        """The configuration; nothing is downloaded."""
        kind = CONFIG_MAPPING[self.model_type]
        known = {*inspect.signature(kind.__init__).parameters, *kind.attribute_map, *_TOKENS}
        taken = {*self.config, *(name for name, own in kind.attribute_map.items() if own in self.config)}
        common = {name: value for name, value in COMMON.items() if name in known - taken}
        return kind(**{**common, "tie_word_embeddings": False, **self.config})

    def model(self, seed: int = 0) -> PreTrainedModel:
        """The model: float32, in evaluation mode, without an end-of-sequence token; the caller's seed is kept."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + self.salt)
            model = AutoModelForCausalLM.from_config(
                self.configuration(), dtype=torch.float32, trust_remote_code=False
            ).eval()
            enliven(model, self.gain, self.head, self.embedding)
            for name, weight in model.state_dict().items():
                for part, factor in self.factors.items():
                    weight.mul_(factor if part in name else 1)
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        return model


@torch.no_grad()
def enliven(model: PreTrainedModel, gain: float, head: float, embedding: float) -> None:
    """Scale matrices and make constants random, from torch's generator."""
    outer = {id(end.weight) for end in (model.get_input_embeddings(), model.get_output_embeddings()) if end is not None}
    for name, weight in model.state_dict(keep_vars=True).items():
        if not weight.is_floating_point() or weight.numel() == 0 or id(weight) in outer:
            continue
        if "sink" in name:
            weight.copy_(torch.randn_like(weight))
        elif _constant(weight):
            weight.add_(torch.randn_like(weight) * 0.1)
        elif weight.dim() > 1:
            weight.mul_(gain)
    model.get_input_embeddings().weight.mul_(embedding)
    if model.get_output_embeddings() is not None:
        model.get_output_embeddings().weight.mul_(head)


def noisy(model: PreTrainedModel, amount: float) -> PreTrainedModel:
    """A good drafter: a copy whose weights are off by `amount` of their own spread."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for weight in other.parameters():
            if weight.numel() > 1 and weight.is_floating_point():
                weight.add_(torch.randn(weight.shape, generator=generator) * amount * weight.std())
    return other


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


def _constant(weight: Tensor) -> bool:
    return bool((weight == weight.flatten()[0]).all())
