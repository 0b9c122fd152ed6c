"""A bug of any-order decoding: distributions that do not sum to 1."""

from collections.abc import Callable

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical
from mmspec.core.types import TargetOutput
from mmspec_zoo.infill.any_order import View
from tests.support.mutants.mutant import ASSD, Mutant, replacing


def _mask_without_renormalising(original: Callable) -> Callable:
    def output(self: View, logits: Tensor, mask: int | None = None) -> TargetOutput:
        assert mask is not None
        probs = logits.float().softmax(-1).index_fill(-1, torch.tensor([mask]), 0.0)
        return TargetOutput(distribution=Categorical(probs))

    return output


MUTANTS = (
    Mutant(
        "mask-token-without-renormalising",
        "the probability of the mask token is set to 0 in p and q, and neither is renormalised",
        f"{ASSD}, the released code, which asserts that it is below 1e-2",
        replacing(View, "output", _mask_without_renormalising),
    ),
)
