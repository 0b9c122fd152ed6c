"""A head that predicts the target's hidden state one row of the picture ahead.

SSD, spatially speculative decoding (arXiv 2606.20543): f(z) = W0 z + SwiGLU(RMSNorm(W0 z)), z = [h; e], predicts the
hidden state of a later code, at an offset in the picture, from the state h and the embedding e of an earlier one. This
is the paper's vertical head of offset 1, with two changes: z also holds state and embedding of the code above on the
right, which is known, too; and states stand behind the final norm, which targets give to heads (the paper's are
before it), so that the output layer reads the prediction as it is.
"""

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.kits.pictures.models.blocks import FeedForward, RMSNorm


class SpatialHead(ModelMixin, ConfigMixin):
    """The head, for states and embeddings of width `dim`."""

    @register_to_config
    def __init__(self, dim: int = 256, hidden: int = 512) -> None:
        super().__init__()
        self.mix = nn.Linear(4 * dim, dim, bias=False)
        self.norm = RMSNorm(dim, 1e-5)
        self.feed_forward = FeedForward(dim, hidden)

    def forward(self, above: Tensor, right: Tensor, above_unit: Tensor, right_unit: Tensor) -> Tensor:
        """Predicted states `[…, dim]` of codes, from states and embeddings of codes above, and above on the right."""
        mixed: Tensor = self.mix(torch.cat([above, right, above_unit, right_unit], -1))
        ahead: Tensor = mixed + self.feed_forward(self.norm(mixed))
        return ahead
