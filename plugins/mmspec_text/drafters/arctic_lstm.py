"""Drafts with an LSTM speculator, as Arctic Inference has them: the MLP speculator with gates and a cell.

Snowflake, https://github.com/snowflakedb/ArcticInference, after the speculators of Wertheimer et al., arXiv 2404.19124:
the state and one embedding of the last unit give the gates of an LSTM and the new value of its cell (`sum_lstm`).
A checkpoint holds two projections, one embedding, two norms and one output layer, which serve all depths.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. A wrong head is lossless too, and slow: the first call tries it on the prompt and warns (`ArcticLstm.loaded`).
Knobs: `form` is the shape of the draft; a larger `width` and more `nodes` find more, and every node costs.
"""

from dataclasses import dataclass

from mmspec_text.drafters.heads.pathwise.drafter import PathDrafter, PathOptions
from mmspec_text.drafters.heads.speculator.checkpoint import read_lstm


@dataclass(frozen=True)
class ArcticLstmOptions(PathOptions):
    """Options of `arctic-lstm`."""


class ArcticLstm(PathDrafter):
    """Drafts with an LSTM speculator.

    Args:
        options: The speculator, and the form of its drafts.

    Raises:
        ValueError: No speculator was named, or it cannot be read.
    """

    example = "mmspec_text.head_example:arctic_lstm"

    def __init__(self, options: ArcticLstmOptions = ArcticLstmOptions()) -> None:
        super().__init__(options, read_lstm, "arctic-lstm")
