"""Drafts with an MLP speculator: a state into which every drafted unit is folded.

Wertheimer et al., arXiv 2404.19124: the target's last state is projected, the root's embedding is added, and the sum is
normalised and activated; the result predicts the next unit, whose embedding is folded in likewise, for as many units as
there are heads. Published speculators of IBM and others have the layout of fms-extras.
A checkpoint holds embeddings, projections, norms and output layers of all depths, which may be tied.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. A wrong head is lossless too, and slow: the first call tries it on the prompt and warns (`MlpSpeculator.loaded`).
Knobs: `form` is the shape of the draft; a larger `width` and more `nodes` find more, and every node costs.
"""

from dataclasses import dataclass

from mmspec_text.drafters.heads.pathwise.drafter import PathDrafter, PathOptions
from mmspec_text.drafters.heads.speculator.checkpoint import read_mlp


@dataclass(frozen=True)
class MlpSpeculatorOptions(PathOptions):
    """Options of `mlp-speculator`."""


class MlpSpeculator(PathDrafter):
    """Drafts with an MLP speculator.

    Args:
        options: The speculator, and the form of its drafts.

    Raises:
        ValueError: No speculator was named, or it cannot be read.
    """

    example = "mmspec_text.head_example:mlp_speculator"

    def __init__(self, options: MlpSpeculatorOptions = MlpSpeculatorOptions()) -> None:
        super().__init__(options, read_mlp, "mlp-speculator")
