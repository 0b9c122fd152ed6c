"""Oasis's transformer: axial attention within a frame and over frames, a timestep and an action per frame.

Decart & Etched, "Oasis: A Universe in a Transformer" (2024; open-oasis), after diffusion forcing (arXiv 2407.01392).
The weights' keys are the published ones. The model predicts v of a sigmoid schedule (`mmspec_video.sampling`).
"""

from collections.abc import Mapping
from typing import Any, Self

from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.core.transfer import moved
from mmspec.kits.pictures.models.blocks import turn
from mmspec.kits.pictures.models.official import Source, count_in, from_official, shape_in
from mmspec_video.models.keys import FrameKeys, LayerKeys, positions_and_mask
from mmspec_video.models.layers import (
    FinalLayer,
    Mlp,
    PatchEmbed,
    TimeEmbedding,
    attention,
    modulated,
    modulation,
    pixel_rotary,
    plain_norm,
    time_rotary,
    unpatchified,
)
from mmspec_video.sampling import OasisSampler

MAX_FREQUENCY = 256  # twice the largest pixel frequency of the rotary embedding, as published
LEFT_OUT = ("rotary_emb.freqs",)
"""Parts of keys of entries that are not weights: rotary frequencies, which are computed instead."""
HEADS = {(1024, 16): 16}  # published sizes: (width, blocks) to attention heads, which no shape tells


class AxialAttention(nn.Module):
    """Attention along one axis: within a frame, or over frames."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def within(self, x: Tensor, rotary: Tensor) -> Tensor:
        """Attention among the cells of a frame; `x [row, frame, cell, dim]`, `rotary [1, cell, …]`."""
        query, key, value = self._projected(x)
        query, key = (turn(t.flatten(0, 1), rotary.expand(t.shape[0] * t.shape[1], -1, -1, -1)) for t in (query, key))
        out = attention(query, key, value.flatten(0, 1))
        return self.to_out(out.unflatten(0, x.shape[:2]))

    def over(self, x: Tensor, rotary: Tensor, seen: Tensor | None, keys: LayerKeys | None) -> Tensor:
        """Attention of a cell to itself in earlier frames; `rotary [row, frame, …]`, `seen [row, frame, slot]`."""
        query, key, value = self._projected(x)
        frames, cells = x.shape[1:3]
        query, key = (turn(t.flatten(2, 3), rotary).unflatten(2, (cells, self.heads)) for t in (query, key))
        if keys is not None:
            key, value = keys.update(key, value)
        query, key, value = (t.transpose(1, 2).flatten(0, 1) for t in (query, key, value))  # [row · cell, …]
        mask = None if seen is None else seen.repeat_interleave(cells, 0)[:, None]
        out = attention(query, key, value, mask)
        return self.to_out(out.unflatten(0, (-1, cells)).transpose(1, 2)).reshape(*x.shape[:1], frames, cells, -1)

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)


class AxialBlock(nn.Module):
    """Attention and MLP within the frame (`s_`), then over frames (`t_`), each half with its own modulation."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.s_norm1, self.s_attn = plain_norm(dim), AxialAttention(dim, heads)
        self.s_norm2, self.s_mlp = plain_norm(dim), Mlp(dim, 4 * dim)
        self.s_adaLN_modulation = modulation(dim, 6)
        self.t_norm1, self.t_attn = plain_norm(dim), AxialAttention(dim, heads)
        self.t_norm2, self.t_mlp = plain_norm(dim), Mlp(dim, 4 * dim)
        self.t_adaLN_modulation = modulation(dim, 6)

    def forward(
        self, x: Tensor, condition: Tensor, pixels: Tensor, times: Tensor, seen: Tensor | None, keys: LayerKeys | None
    ) -> Tensor:
        shift, scale, gate, *rest = self.s_adaLN_modulation(condition).chunk(6, -1)
        x = x + gate[:, :, None] * self.s_attn.within(modulated(self.s_norm1(x), shift, scale), pixels)
        x = _with_mlp(x, self.s_norm2, self.s_mlp, *rest)
        shift, scale, gate, *rest = self.t_adaLN_modulation(condition).chunk(6, -1)
        x = x + gate[:, :, None] * self.t_attn.over(modulated(self.t_norm1(x), shift, scale), times, seen, keys)
        return _with_mlp(x, self.t_norm2, self.t_mlp, *rest)


class OasisDiT(ModelMixin, ConfigMixin):
    """The transformer."""

    @register_to_config
    def __init__(
        self,
        input_h: int = 18,  # of a latent frame, as width and channels
        input_w: int = 32,
        patch_size: int = 2,  # side of a cell, in latents
        in_channels: int = 16,
        *,
        hidden_size: int = 1024,
        depth: int = 16,
        num_heads: int = 16,
        external_cond_dim: int = 25,  # length of an action's vector
        max_frames: int = 32,  # of the attention window, the newest one included
    ) -> None:
        super().__init__()
        self.x_embedder = PatchEmbed(in_channels, hidden_size, patch_size)
        self.t_embedder = TimeEmbedding(hidden_size)
        self.external_cond = nn.Linear(external_cond_dim, hidden_size)
        self.blocks = nn.ModuleList(AxialBlock(hidden_size, num_heads) for _ in range(depth))
        self.final_layer = FinalLayer(hidden_size, patch_size * patch_size * in_channels)
        grid, width = (input_h // patch_size, input_w // patch_size), hidden_size // num_heads
        # Not a buffer: it stays float32 when the weights are cast.
        self.pixels = pixel_rotary(*grid, width, width // 4, MAX_FREQUENCY)
        self.sampler = OasisSampler()
        # `[action + 1, external_cond_dim]`: those of every action, then of "no action"; the user of the model sets it
        self.vectors: Tensor | None = None

    @classmethod
    def from_official(cls, source: Source, **config: Any) -> Self:
        """The model with published weights, of a file or a mapping.

        `rotary_emb.freqs` may be there once, in every block, or not. `config` is what the weights do not tell:
        `num_heads`, `input_h`, `input_w`, `max_frames` of an unpublished size.
        """
        return from_official(lambda state: cls(**oasis_sizes(state, config)), source, LEFT_OUT)

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        return self.config.in_channels, self.config.input_h, self.config.input_w

    @property
    def window(self) -> int:
        return self.config.max_frames

    @property
    def action_count(self) -> int | None:
        return None if self.vectors is None else len(self.vectors) - 1

    def forward(
        self,
        x: Tensor,
        time: Tensor,
        actions: Tensor,
        position: Tensor | None = None,
        seen: Tensor | None = None,
        keys: FrameKeys | None = None,
    ) -> Tensor:
        """v of every frame; as in `NextFrameDiT`, but times are training times, 0 to 999, and actions vectors `[row,
        frame, external_cond_dim]`.
        """
        position, seen = positions_and_mask(x, position, seen, keys)
        condition = self.t_embedder(time) + self.external_cond(actions.to(self.external_cond.weight.dtype))
        self.pixels = moved(self.pixels, x.device)
        times = time_rotary(position, self.config.hidden_size // self.config.num_heads)
        x = self.x_embedder(x)
        for i, block in enumerate(self.blocks):
            x = block(x, condition, self.pixels[None], times, seen, None if keys is None else keys[i])
        patch = self.config.patch_size
        return unpatchified(self.final_layer(x, condition), self.config.input_h // patch, patch)


def _with_mlp(x: Tensor, norm: nn.Module, mlp: nn.Module, shift: Tensor, scale: Tensor, gate: Tensor) -> Tensor:
    return x + gate[:, :, None] * mlp(modulated(norm(x), shift, scale))


def oasis_sizes(state: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of weights under their published keys; `given` overrides what the shapes say."""
    if "x_embedder.proj.weight" not in state or "blocks.0.t_attn.to_qkv.weight" not in state:
        raise ValueError("these are no weights of Oasis's transformer: there is no x_embedder or no blocks.0.t_attn")
    dim, channels, patch, _ = shape_in(state, "x_embedder.proj.weight", 4)
    depth = count_in(state, "blocks.")
    heads = given.get("num_heads", HEADS.get((dim, depth)))
    if heads is None:
        raise ValueError(f"width {dim} with {depth} blocks is no published size: say num_heads=")
    sizes = {"in_channels": channels, "patch_size": patch, "hidden_size": dim, "depth": depth, "num_heads": heads}
    return sizes | {"external_cond_dim": shape_in(state, "external_cond.weight", 2)[1]} | dict(given)
