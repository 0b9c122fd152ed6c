"""Blocks of a causal language model: what it says behind roots of a text about units of which it is told nothing.

In one pass over the text a chain of fillers hangs behind every root, at the positions that follow. Fillers see the text
up to their root and the fillers before them in their block, and no unit of the text sees one: a block is what the model
says in a pass that ends there. PARD's fillers are masks, PPD's are prompt tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mmspec.hosts.model_info import ModelInfo
from mmspec.registry.printable import shown

ODD = 0.05
"""Differences of a block from a pass of its own above which a model is refused, as a share of what it says there."""


def fill_blocks(
    model: Any,
    units: Tensor,
    roots: Tensor,
    fillers: Tensor,
    kept: Sequence[int],
    *,
    text: bool = True,
    recompute: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """A model's scores of a text `[batch, unit, vocab]`, if `text` asks for them, and at fillers behind its roots.

    `roots [batch, root]` are places in the text; `fillers [filler, hidden]` stand in the place of units' embeddings, in
    the order of a block, and `kept` says how many of the roots, the first ones, have each filler, for which there are
    scores `[batch, root, vocab]`. `recompute` runs layers again for the gradient.
    """
    (batch, known), device = units.shape, units.device
    nodes = [(root, depth) for depth, count in enumerate(kept) for root in range(count)]
    block, depth = torch.tensor(nodes, dtype=torch.int64, device=device).view(-1, 2).unbind(1)
    end, place = roots[:, block], torch.arange(known, device=device)
    position = torch.cat([place.expand(batch, -1), end + 1 + depth], 1)
    inputs = model.get_input_embeddings()(units)
    inputs = torch.cat([inputs, fillers.to(inputs.dtype)[depth].expand(batch, -1, -1)], 1)
    sees = torch.zeros(batch, known + len(nodes), known + len(nodes), dtype=torch.bool, device=device)
    sees[:, :known, :known] = place[:, None] >= place
    sees[:, known:, :known] = place <= end[:, :, None]
    sees[:, known:, known:] = (block[:, None] == block) & (depth[:, None] >= depth)
    mask = torch.zeros_like(sees, dtype=inputs.dtype).masked_fill(~sees, torch.finfo(inputs.dtype).min)[:, None]
    how = {"attention_mask": mask, "position_ids": position, "use_cache": False}
    with recomputed(model) if recompute else nullcontext():
        scored = model(inputs_embeds=inputs, logits_to_keep=0 if text else len(nodes), **how).logits
    first = scored.shape[1] - len(nodes)
    return scored[:, :first], list(scored[:, first:].split(list(kept), 1))


@contextmanager
def recomputed(model: Any) -> Iterator[None]:
    """A block in which the layers of a live model keep their inputs alone, and run again for the gradient."""
    layers = ModelInfo.of(model).language.layers
    own = [(vars(layer), vars(layer).get("forward")) for layer in layers]
    for layer in layers:
        vars(layer)["forward"] = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for members, forward in own:
            members.pop("forward")
            members.update({} if forward is None else {"forward": forward})


@torch.no_grad()
def refuse_odd_blocks(model: Any, length: int, fillers: Tensor, what: str) -> None:
    """Refuse a model whose blocks behind a text of so many units are not what it says in passes of their own."""
    embedding, count, kind = model.get_input_embeddings(), len(fillers), type(model).__name__
    units = torch.arange(length, device=fillers.device)[None] % len(embedding.weight)
    roots = torch.tensor([[length // 2, length - 1]], device=fillers.device)
    try:
        _, levels = fill_blocks(model, units, roots, fillers, [2] * count)
    except (TypeError, ValueError, IndexError) as error:  # models raise whatever they make of a mask of this form
        raise ValueError(f"{what} ({kind}) takes no blocks behind a text: {shown(error)}") from error
    for row, root in enumerate(roots[0].tolist()):
        inputs = torch.cat([embedding(units[0, : root + 1]), fillers.to(embedding.weight.dtype)])[None]
        theirs = model(inputs_embeds=inputs, use_cache=False).logits[0, -count:].float()
        if not (torch.stack([level[0, row] for level in levels]) - theirs).norm() <= ODD * theirs.norm():
            raise ValueError(
                f"{what} ({kind}) says other things in a pass over many blocks than in a pass of one: it has states, "
                "windows shorter than a sequence (context), or positions of its own"
            )
