"""What the conformance kit tries any-order targets and their drafter on: a tiny XLNet with random weights."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from transformers import XLNetConfig

from mmspec.testing.conformance.example import Example
from mmspec.testing.tiny_models import random_model
from mmspec_zoo.infill.any_order import Infill
from mmspec_zoo.infill.xlnet import XLNetTarget

VOCAB, BLANKS = 8, 24


@cache
def model() -> Any:
    """An XLNet of eight ids, `<mask>` among them; what a query sees, and how far away, decides what it scores."""
    sizes = dict(vocab_size=VOCAB, d_model=16, n_layer=2, n_head=2, d_inner=24)
    seen = {"rel_attn.v": 5.0, "rel_attn.o": 5.0, "rel_attn.q": 0.5, "rel_attn.r": 10.0, "mask_emb": 0.05}
    return random_model(XLNetConfig(**sizes), gain=20.0, head=32.0, factors=seen)


def prompt(rows: Sequence[int], blanks: int = BLANKS) -> Infill:
    """Texts with as many blanks, some of which are filled from right to left."""
    texts = [_text(row, blanks) for row in rows]
    orders = [[place for place, token in enumerate(text) if token is None] for text in texts]
    return Infill(texts, [order[::-1] if row % 2 else order for row, order in zip(rows, orders, strict=True)])


def _text(row: int, blanks: int) -> list[int | None]:
    generator = torch.Generator().manual_seed(row % 64)
    known: list[int | None] = [*torch.randint(6, (3 + row % 3,), generator=generator).tolist()]
    half = blanks // 2
    return [known[0], *[None] * half, *known[1:-1], *[None] * (blanks - half), known[-1]]


def xlnet() -> Example:
    """As many blanks as the kit fills in most checks; behind them it sees how a row goes on."""
    return Example(target=XLNetTarget(model()), prompt=prompt)


def assd() -> Example:
    """Short texts: the kit decodes thousands of rows, and every pass reads all of a text."""
    return Example(target=XLNetTarget(model()), prompt=partial(prompt, blanks=8))
