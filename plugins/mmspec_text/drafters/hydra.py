"""Drafts with Hydra's heads: one for each depth, which reads the target's last state and the drafted units before it.

Ankner et al., arXiv 2402.05109: head i is an MLP over the state before the root and the embeddings of the root and
of the i units drafted so far; so every node of a tree has a distribution of its own. Hydra++ reads all states
so far through one decoder layer, in place of the last one.
A checkpoint holds the MLPs and output layers of all heads, and Hydra++'s decoder layer; embeddings are the target's.
The paper's typical acceptance is lossy, and is not used.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. Wrong heads are lossless too, and slow: the first call tries them on the prompt and warns (`Hydra.loaded`).
Knobs: `form` is the shape of the draft; a larger `width` and more `nodes` find more, and every node costs.
"""

from dataclasses import dataclass

from mmspec_text.drafters.heads.hydra.checkpoint import read_hydra
from mmspec_text.drafters.heads.pathwise.drafter import PathDrafter, PathOptions


@dataclass(frozen=True)
class HydraOptions(PathOptions):
    """Options of `hydra`."""


class Hydra(PathDrafter):
    """Drafts with Hydra's heads.

    Args:
        options: The heads, and the form of their drafts.

    Raises:
        ValueError: No heads were named, or they cannot be read.
    """

    example = "mmspec_text.head_example:hydra"

    def __init__(self, options: HydraOptions = HydraOptions()) -> None:
        super().__init__(options, read_hydra, "hydra")
