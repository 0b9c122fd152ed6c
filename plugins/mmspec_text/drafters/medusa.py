"""Drafts with Medusa's heads: one for each depth, which all read the target's last state and no drafted unit.

Cai et al., arXiv 2401.10774: head i is a residual block and an output layer of its own, and it predicts the unit
i + 1 places behind the root from the state before the root. So a draft's distribution is a product over depths: it is
the same behind all nodes of a depth, and a tree is a choice of combinations.
A checkpoint holds the blocks and output layers of all heads, in the layout of the authors or of vLLM, which may share
one output layer and score a part of the ids (`token_map`). The paper's own acceptance is lossy, and is not used.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. Wrong heads are lossless too, and slow: the first call tries them on the prompt and warns (`Medusa.loaded`).
Knobs: `form` is the shape of the draft; a wider tree costs the heads nothing, and every node costs the target.
"""

from dataclasses import dataclass

from mmspec_text.drafters.heads.medusa.checkpoint import read_medusa
from mmspec_text.drafters.heads.pathwise.drafter import PathDrafter, PathOptions


@dataclass(frozen=True)
class MedusaOptions(PathOptions):
    """Options of `medusa`."""


class Medusa(PathDrafter):
    """Drafts with Medusa's heads.

    Args:
        options: The heads, and the form of their drafts.

    Raises:
        ValueError: No heads were named, or they cannot be read.
    """

    example = "mmspec_text.head_example:medusa"

    def __init__(self, options: MedusaOptions = MedusaOptions()) -> None:
        super().__init__(options, read_medusa, "medusa")
