"""Drafts with a state that steps along the path, by attention over its own earlier states: after Clover's papers.

Xiao et al., arXiv 2405.00263 (Clover) and 2408.00264 (Clover-2). An *augmenting block*, one decoder layer, reads the
target's last states; the *regressive connection* feeds every drafted unit to the next speculator; the *attention
decoder* merges its embedding with the states before.
The cell here is ours, from the papers alone (`heads/clover/network.py`). The authors' code (Clover-2,
github.com/XiaoBin1992/clover) has another one: W_v E(unit), scaled head by head with the cosine of W_q norm(state) and
W_k E(unit), is added to the state, and an MLP of [state, embedding] follows. So no checkpoint of theirs loads.
A checkpoint of ours holds the augmenting block, one cell (Clover-2) or one for each depth (Clover), and a norm;
embedding and output layer are the target's.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. Wrong heads are lossless too, and slow: the first call tries them on the prompt and warns (`Clover.loaded`).
Knobs: `form` is the shape of the draft; a larger `width` and more `nodes` find more, and every node costs.
"""

from dataclasses import dataclass

from mmspec_text.drafters.heads.clover.checkpoint import read_clover
from mmspec_text.drafters.heads.pathwise.drafter import PathDrafter, PathOptions


@dataclass(frozen=True)
class CloverOptions(PathOptions):
    """Options of `clover`."""


class Clover(PathDrafter):
    """Drafts with speculators after Clover's papers.

    Args:
        options: The speculators, and the form of their drafts.

    Raises:
        ValueError: No speculators were named, or they cannot be read.
    """

    example = "mmspec_text.head_example:clover"

    def __init__(self, options: CloverOptions = CloverOptions()) -> None:
        super().__init__(options, read_clover, "clover")
