"""A trial of a DFlash head on the user's prompt: how often the first unit of its block is the target's.

One pass of the target over a piece of the prompt, then a block behind each of some of its units.
"""

import torch
from torch import Tensor

from mmspec.core.types import Draft
from mmspec.hosts.features import Reading
from mmspec.hosts.target import TransformersTarget
from mmspec_text.drafters.heads.dflash.context import Context
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.eagle.layouts import Convention
from mmspec_text.drafters.heads.eagle.probe import Trial
from mmspec_text.drafters.heads.rows import Rows

BLOCKS = 16
"""Most blocks of a trial."""


@torch.inference_mode()
def tried(
    network: DFlashNetwork, target: TransformersTarget, boundaries: tuple[int, ...], convention: Convention, ids: Tensor
) -> Trial:
    """Try a head on `ids [unit]`, without padding; `convention` is what its layer ids mean."""
    with Reading(target.anatomy, boundaries) as reading:
        scores = target.model(input_ids=ids[None], use_cache=False).logits[0]
    assert reading.states is not None
    roots = torch.linspace(1, len(ids) - 1, min(BLOCKS, len(ids) - 1), device=ids.device).long()
    context = Context(network, len(roots), len(ids), ids.device)
    features = reading.states.expand(len(roots), -1, -1)
    context.append(Rows.at_left(features, roots))
    logits = context.block(ids[roots]).grow(Draft.alone(ids[roots]), 0).logits
    assert logits is not None
    theirs = scores[roots, : network.vocab].argmax(-1)
    right = float((logits[:, 0].argmax(-1) == theirs.to(logits.device)).float().mean())
    return Trial(len(roots), {convention: right}, convention)
