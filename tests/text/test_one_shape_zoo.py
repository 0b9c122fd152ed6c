"""One shape per call over the zoo, in bfloat16: which architectures keep the promise, trees and chains alike."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.host import HostDrafterAdapter
from mmspec.core.warp import Warp
from tests.support.zoo import ARCHITECTURES, RECURRENT

NODES, NEW, SEEDS = 8, 32, 2
ALL = {**ARCHITECTURES, **RECURRENT}
QUICK = ["llama", "mixtral", "gptj"]
SOFT = 2.0
SOFTER = ["phimoe", "granitemoeshared", "dots1", "granitemoe_swa", "jamba", "qwen3_5_moe_text"]
"""Where the zoo's weights magnify rounding until the self-check refuses the model in bfloat16."""


class Told:
    """Drafts that are right for a while, a number of units that changes from round to round, and then wrong.

    Args:
        texts: What plain decoding writes, by row.
    """

    def __init__(self, texts: list[Tensor]) -> None:
        self.texts = [text.tolist() for text in texts]
        self.begun: list[int] = []
        self.rounds = 0

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        self.begun = self.begun or [len(row) - 1 for row in tokens]  # the prefill's unit is there already
        self.rounds += 1
        right = (8, 0, 3, 1, 7)[self.rounds % 5]
        done = [len(row) - begun for row, begun in zip(tokens, self.begun, strict=True)]
        return [[*text[n : n + right], *[5] * k][:k] for text, n in zip(self.texts, done, strict=True)]


def kept(name: str, prompts: Callable[..., dict[str, Tensor]]) -> tuple[int, int]:
    """Texts under drafts that equal plain decoding of the same width, and all of them."""
    recipe = ALL[name]
    model: Any = (replace(recipe, gain=SOFT) if name in SOFTER else recipe).model().to(torch.bfloat16)
    alone = name in ARCHITECTURES and ARCHITECTURES[name].alone
    inputs, rows = prompts(1 if alone else 3), 1 if alone else 3
    tree: dict[str, Any] = {"k": 4, "options": {"nodes": NODES}, "shape": NODES + 1}
    decoder = decoder_for(model, "token-recycling", **tree)
    equal = []
    for seed in range(SEEDS):
        call = {"seed": [3 * seed + row for row in range(rows)], "warp": Warp.sampling(temperature=1.0)}
        plain = Decoder(decoder.target, shape=NODES + 1).generate(inputs, NEW, **call).units
        told = Decoder(decoder.target, HostDrafterAdapter(Told(plain)), k=NODES, shape=NODES + 1)
        chain, over_tree = told.generate(inputs, NEW, **call), decoder.generate(inputs, NEW, **call)
        assert chain.report.acceptance_length > 1.5, "next to nothing was accepted, so nothing was tested"
        own = decoder.target.passes.manner == "explicit"  # its attention sums in bfloat16, which shows trees
        assert not own or (chain.report.width and over_tree.report.width is None)
        for out in (chain,) if own else (chain, over_tree):
            equal += [torch.equal(a, b) for a, b in zip(out.units, plain, strict=True)]
    return sum(equal), len(equal)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in ALL])
def test_texts_equal_plain_of_one_width(name: str, prompts: Callable[..., dict[str, Tensor]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        equal, texts = kept(name, prompts)
    assert equal == texts, f"{equal} of {texts}"
