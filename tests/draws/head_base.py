"""What all heads that are drawn have: a target, a chain of drafts, and a layout with its tensors and config.

Logits are those behind the root and behind each unit of a drafted path, over the target's ids: `[step, vocab]`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.core.types import Draft
from mmspec.hosts.target import TransformersTarget

ROWS, CHAIN = 10, 3
"""Known rows, and steps of a chain that are compared."""
Weights = dict[str, Tensor]
Config = dict[str, Any]
NESTED = ("transformer_layer_config", "eagle_config", "dflash_config", "dspark_config", "clover")
"""Parts of configs in which layouts put entries."""


@cache
def target(width: int, ids: int) -> TransformersTarget:
    """What heads draft for; its layers are never run."""
    torch.manual_seed(1)
    sizes = {"hidden_size": width, "intermediate_size": 8, "num_hidden_layers": 6, "vocab_size": ids}
    model: Any = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, pad_token_id=0)).eval()
    model.model.embed_tokens.weight.data.normal_()
    model.lm_head.weight.data.normal_()
    return TransformersTarget(model.requires_grad_(False))


def ends(width: int, ids: int) -> tuple[Tensor, Tensor]:
    """The weights of the target's embedding and output layer."""
    lent = target(width, ids).lend()
    return lent.embedding.weight, lent.output.weight  # type: ignore[return-value]


def bound(drafter: Any, width: int, ids: int) -> Any:
    """A drafter behind all that is checked before it drafts."""
    drafter.bind(drafter.wrap(target(width, ids)))
    lent = target(width, ids).lend()
    drafter.network.join(lent.embedding, lent.output, lent.device, lent.dtype)
    return drafter


def stepped(opened: tuple[Any, Any], root: Tensor, path: Tensor) -> Tensor:
    """Logits along a path, of a draft that grows unit by unit."""
    output, feed = opened
    found = [output.whole().logits]
    for nodes in range(1, path.shape[1] + 1):
        draft = Draft.chain(path[:, :nodes]).rooted(root, torch.full_like(root, 9))
        found.append(feed(draft, nodes).whole().logits)
    return torch.cat(found, 1)[0]


class Kind(ABC):
    """A layout."""

    config: Config  # its config, as it is published
    copies: Mapping[str, str] = {}  # keys that are copies of others
    extra: tuple[str, ...] = ()  # keys of no use
    stem: str = "model"  # of its file's name
    nested: tuple[str, ...] = ()  # parts of its config that hold entries of layers
    lent: ClassVar[Weights] = {}  # copies of the target's weights that its files carry
    may_repeat: ClassVar[Weights] = {}  # and those that they may carry

    @abstractmethod
    def weights(self, shape: Mapping[str, Any]) -> tuple[Weights, Config]:
        """Tensors by our names, and entries of the config that change with the shape."""

    def named(self, key: str) -> str:
        """A tensor's key in the file."""
        return key

    @abstractmethod
    def ours(self, folder: Path) -> Tensor:
        """What mmspec drafts with."""

    @abstractmethod
    def theirs(self, w: Weights, config: Config) -> Tensor:
        """What the reference drafts with; `w` are in float64."""

    def given(self, config: Config) -> Config:
        """The entries of a config as its authors' code sees them, flat."""
        found = dict(config)
        for part in NESTED:
            inner = config.get(part)
            if isinstance(inner, Mapping):
                found |= {key: value for key, value in inner.items() if value is not None}
        return found


def over(ids: Tensor | None, scored: Sequence[Tensor], vocab: int) -> Tensor:
    """Logits over the target's ids."""
    logits = torch.stack(list(scored))
    if ids is None:
        return logits
    return torch.full((len(logits), vocab), -torch.inf, dtype=logits.dtype).index_copy(1, ids, logits)
