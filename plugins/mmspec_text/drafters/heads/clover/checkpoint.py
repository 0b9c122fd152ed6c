"""Reading speculators after Clover's papers, in a layout of ours; the authors' Clover-2, with another cell, is refused.

`augmenting.*` is a decoder layer by transformers' names; `cells.{depth}.{state_norm,token_norm,q_proj,k_proj,v_proj,
o_proj}.weight`, one or one for each depth; `norm.weight`. The config has `num_speculators`, `num_attention_heads` and
`vocab_size`.
"""

import torch

from mmspec_text.drafters.heads.clover.network import CloverNetwork, CloverSizes
from mmspec_text.drafters.heads.pathwise.block import BlockSizes
from mmspec_text.drafters.heads.pathwise.checkpoint import PathCheckpoint
from mmspec_text.drafters.heads.stored import stored_head
from mmspec_text.drafters.heads.values import counted, part_numbers, positive

FORMS = {"clover": ("augmenting.self_attn.q_proj.weight", "cells.0.q_proj.weight", "norm.weight")}
MOST = 64
"""Speculators that one cell may stand for."""


def read_clover(name: str) -> PathCheckpoint:
    """Read speculators.

    Args:
        name: A folder, or a hub name.

    Raises:
        ValueError: There are none, they are damaged, or in another layout.
    """
    stored = stored_head(name, "a Clover", lambda key: key)
    config, headers, what = stored.config, stored.headers, stored.what
    if any(key not in headers for key in FORMS["clover"]):
        raise stored.no_layout(FORMS)
    block = BlockSizes.of(stored, "augmenting.")
    cells = counted(part_numbers(headers, "cells."), {}, (), what)
    units = positive(config, "num_speculators", what)
    if units > MOST or cells not in (1, units):
        raise ValueError(f"{what} has {cells} cells for {units} speculators (num_speculators, at most {MOST})")
    vocab = positive(config, "vocab_size", what)
    sizes = CloverSizes(units, block.hidden, block.hidden, vocab, vocab, own_embedding=False, block=block, cells=cells)
    with torch.device("meta"):
        wanted = CloverNetwork(sizes, 1).state_dict().keys()
    weights, ignored = stored.weights(wanted)
    return PathCheckpoint(
        name, "clover", sizes, CloverNetwork, weights, ignored, ("embed_tokens.weight", "lm_head.weight")
    )
