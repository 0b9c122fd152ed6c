"""Heads that score a part of the target's ids: the map of a pruned vocabulary, and output layers that are cut.

The map is `d2t`, which is added to a draft id, and `t2d`, which marks the ids that have one. A head that scores more
ids than pay keeps the rows of the most frequent ones (VocabTrim, arXiv 2506.22694); the layer may be the target's.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from mmspec.core.protocols import Target
from mmspec.core.types import Part
from mmspec.kits.text.corpus import counted, kept_ids
from mmspec.kits.text.small_model import special_ids, target_tokenizer
from mmspec.registry.options import option


@dataclass(frozen=True)
class TrimOptions:
    """Options of drafters whose output layer may be cut."""

    keep: Annotated[int, Field(ge=1)] | None = option(
        None, "ids that are scored, the most frequent of the corpus; fewer are faster, and draft worse"
    )
    corpus: Any = option(
        None, "what is counted for keep: a UTF-8 text file, a file of ids (.json, .safetensors), or ids"
    )
    tokenizer: Any = option(None, "for a corpus of text: the target's tokenizer, live or a model's name")

    def kept(self, target: Target) -> Tensor | None:
        """The target's ids that are scored, ascending, the special ones among them; None: all."""
        if (self.keep is None) != (self.corpus is None):
            raise ValueError("an output layer is cut by keep=<number of ids> and corpus=<what they are counted in>")
        if self.keep is None or target.vocab is None or self.keep >= target.vocab:
            return None
        tokenizer = target_tokenizer(target, self)
        counts = torch.from_numpy(counted(self.corpus, tokenizer, target.vocab))
        return torch.tensor(kept_ids(counts, special_ids(target, tokenizer), self.keep))


class Trimmed(nn.Module):
    """The rows of an output layer that are kept: those of the target's ids `kept [n]`, ascending.

    `ids [row]` is the target's id of each row of the layer, None where they are the same; `own` is the head's output
    layer, None where it is the target's.
    """

    rows: Tensor
    ids: Tensor
    weight: Tensor
    bias: Tensor | None

    def __init__(self, kept: Tensor, ids: Tensor | None = None, own: nn.Module | None = None) -> None:
        super().__init__()
        self._own = (own,)  # in a tuple, so that torch does not adopt it
        rows = kept if ids is None else torch.isin(ids.cpu(), kept).nonzero()[:, 0]
        for name, value in (("rows", rows), ("ids", rows if ids is None else ids.cpu()[rows])):
            self.register_buffer(name, value.clone(), persistent=False)
        for name in ("weight", "bias"):
            self.register_buffer(name, None, persistent=False)

    def forward(self, states: Tensor) -> Tensor:
        return nn.functional.linear(states, self.weight, self.bias)

    def take(self, of_target: nn.Module) -> None:
        """Take the rows of the layer, which may have been moved, cast or trained; those that fit stay in place."""
        layer = of_target if self._own[0] is None else self._own[0]
        if not isinstance(layer, nn.Linear) or not layer.weight.is_floating_point():
            raise ValueError("the output layer has packed weights, of which no rows can be kept: leave out keep=")
        whole = layer.weight
        for name in ("rows", "ids"):
            setattr(self, name, getattr(self, name).to(whole.device))
        for name, value in (("weight", whole), ("bias", layer.bias)):
            new, old = None if value is None else value.detach()[self.rows], self._buffers[name]
            if new is None or old is None or (old.device, old.dtype) != (new.device, new.dtype):
                self._buffers[name] = new
            elif not torch.equal(old, new):  # so that nothing changes that captured rounds would have to notice
                old.copy_(new)


def mapped_ids(d2t: Tensor | None, t2d: Tensor | None, drafted: int, vocab: int, what: str) -> Tensor | None:
    """The target's id of each of a head's ids, `[drafted]` ascending; None where all ids are the target's own.

    `d2t [drafted]` int64 holds the target's id less the head's; `t2d`, `[vocab]` bool or longer, marks the ids of the
    target that the head has. Either may be None; maps that are not of this head and target are refused.
    """
    if d2t is None:
        if drafted < vocab and t2d is not None:
            d2t = t2d.nonzero()[:, 0][:drafted] - torch.arange(int(t2d.sum()))[:drafted]
        elif drafted < vocab:
            raise ValueError(
                f"{what} scores {drafted} ids of the target's {vocab}, and has no map (d2t, t2d) of which ones"
            )
        else:
            return None
    if d2t.shape != (drafted,):
        raise ValueError(f"{what}: d2t has shape {list(d2t.shape)}, and the head scores {drafted} ids")
    ids = d2t.long() + torch.arange(drafted)
    if drafted < vocab and not bool(d2t.any()):
        raise ValueError(f"{what}: d2t is all zero, so it was never saved: the head would score ids 0 to {drafted - 1}")
    if not bool((ids.diff() > 0).all()) or int(ids[0]) < 0:
        raise ValueError(f"{what}: d2t does not give ascending ids, as a list of ids sorted by frequency would not")
    if int(ids[-1]) >= vocab:
        raise ValueError(f"{what}: d2t names id {int(ids[-1])}, and the target has {vocab}: a head of another target")
    if t2d is not None and (int(t2d.sum()) != drafted or not bool(t2d.bool()[ids.clamp(max=len(t2d) - 1)].all())):
        raise ValueError(f"{what}: d2t and t2d do not name the same ids")
    return None if drafted == vocab else ids


def over_target(scored: Tensor, ids: Tensor | None, vocab: int) -> Tensor:
    """Logits over the target's ids, -inf where a head has none.

    `scored` are logits over the head's ids, `[batch, row, drafted]`; `ids [drafted]` are the target's, None if they are
    the same.
    """
    if ids is None and scored.shape[-1] >= vocab:  # rows behind the vocabulary are padding
        return scored[..., :vocab]
    ids = torch.arange(scored.shape[-1], device=scored.device) if ids is None else ids
    return Part(ids, vocab).whole(scored)
