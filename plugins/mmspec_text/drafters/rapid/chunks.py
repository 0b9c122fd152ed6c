"""Which part of a long prompt a draft model reads: its first tokens, the chunks that its end asks for, and its end.

RAPID (arXiv 2502.20330) embeds chunks of text with a retrieval model (BGE-M3), and keeps the 16 best of 512 tokens.
Here chunks are scored by BM25 over token ids: what is kept decides how much is accepted and never the output, ids are
all that a target knows of a prompt, and no second model has to be loaded, or be of the prompt's language. Names,
numbers and words that the end of a prompt asks about are found by it; what is said in other words is not.
Chunks stay in their order. Those that share no token with the end are left out.
"""

import torch
from torch import Tensor

SATURATION = 1.5
"""k₁ of BM25: how soon further occurrences of a token count no more. Chunks are equally long, so that b is 0."""


def shortened(ids: Tensor, first: int, chunk: int, chunks: int, end: int) -> Tensor:
    """The part of a prompt that is read.

    Args:
        ids: The prompt, `[n]`.
        first: Tokens of its beginning that are kept.
        chunk: Tokens of a chunk.
        chunks: Most chunks that are kept.
        end: Tokens of its end that are kept, and asked about.
    """
    between = len(ids) - first - end
    if between <= chunk * chunks:
        return ids
    pieces = ids[first : len(ids) - end].split(chunk)
    scores = bm25(ids[len(ids) - end :], pieces)
    best = scores.argsort(descending=True, stable=True)[:chunks]
    kept = best[scores[best] > 0].sort().values.tolist()
    return torch.cat([ids[:first], *(pieces[number] for number in kept), ids[len(ids) - end :]])


def bm25(query: Tensor, pieces: tuple[Tensor, ...]) -> Tensor:
    """How well pieces of a text, ids `[n]` each, answer a query of ids: `[piece]`, 0 where they share none."""
    asked = query.unique()
    shared = [piece[torch.isin(piece, asked)] for piece in pieces]
    counts = torch.stack([torch.bincount(torch.searchsorted(asked, ids), minlength=len(asked)) for ids in shared])
    holding = (counts > 0).sum(0)
    rarity = torch.log1p((len(pieces) - holding + 0.5) / (holding + 0.5))
    return (rarity * counts * (SATURATION + 1) / (counts + SATURATION)).sum(1)
