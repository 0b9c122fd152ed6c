"""Small heads of random weights that step along paths, as they are stored, and what a forward written out is given."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mmspec.testing.tiny_models import llama

Shapes = dict[str, tuple[int, ...]]
HIDDEN, VOCAB = 16, 7
"""Sizes of the Llama of the conformance kit."""


@dataclass(frozen=True)
class Given:
    """The input of a forward."""

    weights: Mapping[str, Tensor]  # the tensors, in float64, by the keys of the layout
    config: Mapping[str, Any]  # the entries of `config.json`
    embedding: Tensor  # the target's, `[vocab, width]`
    output: Tensor  # the target's output layer, `[vocab, width]`


Forward = Callable[[Given, Tensor, Sequence[int], Sequence[int]], list[Tensor]]
"""`(given, features [row, width], units, path)`: logits behind the last unit, the root, and behind each unit of a path.
The units are one ahead of the features."""


@dataclass(frozen=True)
class PathLayout:
    """A layout under test."""

    drafter: Any  # the drafter's class
    read: Any  # reads a head from a folder
    renamed: Callable[[str], str]  # what a key is called in messages
    config: Callable[[int, int], dict[str, Any]]  # its `config.json`, for a hidden size and a vocabulary of the target
    shapes: Callable[[int, int], Shapes]  # shapes of its tensors, by its keys, likewise
    forward: Forward  # the forward written out; logits over the target's ids
    integers: Callable[[int], dict[str, Tensor]] = lambda vocab: {}  # tensors of integers, for a vocabulary
    file: str = "model.safetensors"  # the file's name
    extra: tuple[str, ...] = ()  # keys that are of no use
    copies: Mapping[str, str] = field(default_factory=dict)  # keys that are of no use, since they are copies of others
    optional: tuple[str, ...] = ()  # keys that may be missing
    normed: bool = True  # whether features are states behind the target's final norm, and not before it

    def weights(self, hidden: int = HIDDEN, vocab: int = VOCAB, seed: int = 0) -> dict[str, Tensor]:
        """Random weights."""
        g = torch.Generator().manual_seed(seed)
        made = {}
        for key, shape in self.shapes(hidden, vocab).items():
            drawn = torch.randn(shape, generator=g)
            made[key] = drawn * 2 / shape[-1] ** 0.5 if len(shape) > 1 else 1 + 0.3 * drawn
        return {**made, **self.integers(vocab)}

    def save(
        self,
        folder: Path,
        hidden: int = HIDDEN,
        vocab: int = VOCAB,
        changed: Mapping[str, Any] | None = None,
        **tensors: Any,
    ) -> Path:
        """Write it; entries of the config and tensors (None leaves one out) may be changed."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {**self.weights(hidden, vocab), **tensors}
        kept = {key: value.contiguous() for key, value in weights.items() if value is not None}
        kept |= {key: kept[of].clone() for key, of in self.copies.items() if of in kept and key not in tensors}
        kept |= {key: value for key, value in beside(self.extra).items() if key not in kept}
        save_file(kept, folder / self.file)
        (folder / "config.json").write_text(json.dumps({**self.config(hidden, vocab), **(changed or {})}))
        return folder

    def given(self, model: Any, hidden: int = HIDDEN, vocab: int = VOCAB) -> Given:
        """The input of the forward, for a Llama as the target."""
        ends = (model.model.embed_tokens.weight, model.lm_head.weight)
        weights = {
            key: value.double() if value.is_floating_point() else value
            for key, value in self.weights(hidden, vocab).items()
        }
        return Given(weights, self.config(hidden, vocab), *(end.detach().double() for end in ends))


def beside(extra: Sequence[str]) -> dict[str, Tensor]:
    """Tensors that are of no use, some of them copies of the weights of the conformance kit's Llama."""
    model = llama()
    copies = {"lm_head.weight": model.lm_head.weight, "model.embed_tokens.weight": model.model.embed_tokens.weight}
    return {key: copies[key].detach().clone() if key in copies else torch.zeros(2) for key in extra}


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / 2**0.5)) / 2


def scaled(x: Tensor, eps: float = 1e-6) -> Tensor:
    """By the root of the mean square."""
    return x / torch.sqrt((x * x).mean() + eps)
