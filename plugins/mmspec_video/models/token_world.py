"""A discrete-token world model: frames as codes, actions as tokens between them, one causal transformer over both.

In the manner of MineWorld (Guo et al., arXiv 2504.08388). A frame's codes in raster order are followed by the action
that leads to the next frame: `frame, action, frame, action, …`. Actions are units of the same sequence, with ids behind
those of the codes; the model has no opinion on them, they are the player's.
"""

from typing import Any

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.kits.pictures.models.blocks import RMSNorm, TransformerBlock
from mmspec_video.models.rotary import frame_rotary


class Given(nn.Module):
    """What a raster calls a condition is the beginning of the sequence here: its units, embedded."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self._embedding = [embedding]  # in a list: the weights are the model's, not ours

    def forward(self, units: Tensor) -> Tensor:
        return self._embedding[0](units)


class TokenWorldModel(ModelMixin, ConfigMixin):
    """The transformer.

    Args:
        vocab_size: Codes.
        actions: In the action space; action `a` is unit `vocab_size + a`.
        rows: Codes of a frame's column.
        columns: Codes of a frame's row.
        frames: Most frames of a sequence.
        dim: Width.
        n_layer: Blocks.
        n_head: Heads; widths of heads are multiples of 16.
        multiple_of: The hidden width of feed-forwards, 2/3 · 4 · dim, is rounded up to a multiple of this.
        norm_eps: Of the norms.

    Raises:
        ValueError: Heads do not divide the width.
    """

    @register_to_config
    def __init__(
        self,
        vocab_size: int = 512,
        actions: int = 4,
        rows: int = 8,
        columns: int = 8,
        frames: int = 8,
        dim: int = 192,
        n_layer: int = 6,
        n_head: int = 4,
        multiple_of: int = 64,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        if dim % n_head or dim // n_head % 16:
            raise ValueError(f"{n_head} heads do not divide a width of {dim} into widths that are multiples of 16")
        hidden = -(-int(8 * dim / 3) // multiple_of) * multiple_of
        self.tok_embeddings = nn.Embedding(vocab_size + actions, dim)
        self.layers = nn.ModuleList(TransformerBlock(dim, n_head, n_head, hidden, norm_eps) for _ in range(n_layer))
        self.norm = RMSNorm(dim, norm_eps)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        self.cls_embedding = Given(self.tok_embeddings)
        # No buffer: it stays float32 whatever the weights become.
        self.rotary = _rotary(frames, rows, columns, dim // n_head)
        self._scale()

    @property
    def cells(self) -> int:
        """Codes of a frame."""
        return self.config.rows * self.config.columns

    @property
    def period(self) -> int:
        """Units from one frame to the next: its codes and an action."""
        return self.cells + 1

    @property
    def context(self) -> int:
        """Most units of a sequence; an action behind the last frame is none of them."""
        return self.config.frames * self.period - 1

    def forward(self, units: Tensor) -> Tensor:
        """Teacher forcing.

        Args:
            units: `[batch, n]`: codes and actions, a frame first.

        Returns:
            `[batch, n, vocab_size]` float32: entry i predicts code i + 1; where an action comes next, it says nothing.
        """
        length = units.shape[1]
        seen = torch.ones(length, length, dtype=torch.bool, device=units.device).tril()[None, None]
        x = self.run(
            self.embed(units), torch.arange(length, device=units.device)[None], seen, [None] * len(self.layers)
        )
        return self.codes(x)

    def embed(self, units: Tensor) -> Tensor:
        """`[batch, node, dim]` of units `[batch, node]`."""
        return self.tok_embeddings(units)

    def run(self, x: Tensor, position: Tensor, mask: Tensor | None, keys: Any) -> Tensor:
        """Hidden states of embedded units; arguments as in `mmspec.kits.pictures.raster.RasterModel`."""
        self.rotary = self.rotary.to(x.device)
        rotary = self.rotary[position].expand(len(x), -1, -1, -1)
        for layer, kept in zip(self.layers, keys, strict=True):
            x = layer(x, rotary, mask, kept)
        return x

    def codes(self, x: Tensor) -> Tensor:
        """`[batch, node, vocab_size]` float32."""
        return self.output(self.norm(x)).float()

    def logits(self, x: Tensor) -> Tensor:
        """`[batch, node, vocab_size + actions]` float32: no action is ever drawn."""
        return nn.functional.pad(self.codes(x), (0, self.config.actions), value=-torch.inf)

    def _scale(self) -> None:
        """Weights that keep the size of what they read, smaller where a residual is added to."""
        for name, weights in self.named_parameters():
            if weights.dim() > 1:
                deep = name.endswith(("wo.weight", "w2.weight"))
                nn.init.normal_(weights, std=(self.config.dim * (2 * len(self.layers) if deep else 1)) ** -0.5)


def _rotary(frames: int, rows: int, columns: int, width: int) -> Tensor:
    """`[unit, width / 2, 2]`: codes turn with frame and place; an action stands below its frame, where no code is."""
    places = frame_rotary(torch.arange(frames)[None], rows + 1, columns, width)[0]  # [frame, cell, …]
    return places[:, : rows * columns + 1].flatten(0, 1)
