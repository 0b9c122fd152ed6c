"""A discrete-token world model: frames as codes, actions as tokens between them, one causal transformer over both.

The architecture follows MineWorld (Guo et al., arXiv 2504.08388). A frame's codes in raster order are followed by the
action that leads to the next frame: `frame, action, frame, action, …`. Actions are units of the same sequence, with ids
after the codes' ids; the model does not predict them, since they come from the player.
"""

from typing import Any

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.kits.pictures.models.blocks import RMSNorm, run_blocks, transformer_blocks
from mmspec_video.models.layers import frame_rotary


class PromptEmbedding(nn.Module):
    """The condition of a raster transformer: here, the embedded first units of the sequence."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self._embedding = [embedding]  # in a list, so that the weights are not registered twice

    def forward(self, units: Tensor) -> Tensor:
        return self._embedding[0](units)


class TokenWorldModel(ModelMixin, ConfigMixin):
    """The transformer."""

    @register_to_config
    def __init__(
        self,
        vocab_size: int = 512,
        actions: int = 4,  # action `a` is unit `vocab_size + a`
        rows: int = 8,  # of a frame's codes, as columns
        columns: int = 8,
        frames: int = 8,  # most of a sequence
        *,
        dim: int = 192,
        n_layer: int = 6,
        n_head: int = 4,
        multiple_of: int = 64,  # the hidden width of the MLPs, 2/3 · 4 · dim, is rounded up to a multiple of this
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab_size + actions, dim)
        self.layers = transformer_blocks(dim, n_layer, n_head, n_head, multiple_of, norm_eps, each=16)
        self.norm = RMSNorm(dim, norm_eps)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        self.cls_embedding = PromptEmbedding(self.tok_embeddings)
        # Not a buffer: it stays float32 when the weights are cast.
        self.rotary = _rotary(frames, rows, columns, dim // n_head)
        for name, weights in self.named_parameters():  # that keep the scale of their input, less where they are added
            if weights.dim() > 1:
                deep = name.endswith(("wo.weight", "w2.weight"))
                nn.init.normal_(weights, std=(dim * (2 * n_layer if deep else 1)) ** -0.5)

    @property
    def cells(self) -> int:
        return self.config.rows * self.config.columns

    @property
    def action_count(self) -> int:
        return self.config.actions

    @property
    def period(self) -> int:
        """Units from one frame to the next: its codes and an action."""
        return self.cells + 1

    @property
    def context(self) -> int:
        """Most units of a sequence, which ends with a frame's last code."""
        return self.config.frames * self.period - 1

    def forward(self, units: Tensor) -> Tensor:
        """Logits `[batch, n, vocab_size]` float32 of known sequences `[batch, n]` of codes and actions, a frame first
        (teacher forcing): entry i predicts code i + 1; entries before an action have no meaning.
        """
        length = units.shape[1]
        seen = torch.ones(length, length, dtype=torch.bool, device=units.device).tril()[None, None]
        x = self.run(
            self.embed(units), torch.arange(length, device=units.device)[None], seen, [None] * len(self.layers)
        )
        return self.code_logits(x)

    def embed(self, units: Tensor) -> Tensor:
        return self.tok_embeddings(units)

    def run(self, x: Tensor, position: Tensor, mask: Tensor | None, keys: Any) -> Tensor:
        return run_blocks(self, x, position, mask, keys)

    def code_logits(self, x: Tensor) -> Tensor:
        """Logits `[batch, node, vocab_size]` float32 of hidden states."""
        return self.output(self.norm(x)).float()

    def logits(self, x: Tensor) -> Tensor:
        """Logits `[batch, node, vocab_size + actions]` float32 of hidden states; actions have -inf."""
        return nn.functional.pad(self.code_logits(x), (0, self.config.actions), value=-torch.inf)


def _rotary(frames: int, rows: int, columns: int, width: int) -> Tensor:
    """`[unit, width / 2, 2]`: codes have their frame and place; an action has the first place below its frame."""
    places = frame_rotary(torch.arange(frames)[None], rows + 1, columns, width)[0]  # [frame, cell, …]
    return places[:, : rows * columns + 1].flatten(0, 1)
