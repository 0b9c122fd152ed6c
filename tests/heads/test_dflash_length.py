"""A DFlash head drafts its whole block where nobody names a number: what that is worth in tokens a pass."""

from dataclasses import replace

import torch

from mmspec.api.build import decoder_for
from mmspec.core.warp import Warp
from mmspec.testing.tiny_models import llama
from tests.support.examples.heads import PRODUCT, random_dflash


def test_a_block_of_sixteen_at_an_acceptance_of_87_percent() -> None:
    """Expected are (1 - 0.87¹⁶) / 0.13 = 6.86; five units of it, which were once drafted, would give 4.36."""
    head = random_dflash(replace(PRODUCT, block=16))
    options = {"model": head, "probe": False, "form": "chain", "rate": 0.87}
    decoder = decoder_for(llama(), "dflash", rule="synthetic", options=options)
    rows = torch.arange(48).remainder(7).reshape(16, 3)
    report = decoder.generate(rows, 160, seed=5, warp=Warp.sampling()).report
    print(f"DFlash, block 16, acceptance 0.87: {report.acceptance_length:.2f} tokens a pass")
    assert (decoder.k, decoder.k_from) == (15, "its head") and 6.5 <= report.acceptance_length < 7.2
