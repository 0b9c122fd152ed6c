"""`NextFrameDiT`: a block-causal diffusion transformer that predicts the next frame from an action.

An architecture of this project after "Playing with Transformer at 30+ FPS via Next-Frame Diffusion" (arXiv 2506.01380),
of which neither code nor weights are public: full attention within a frame, causal attention over frames, a timestep
per frame (diffusion forcing, arXiv 2407.01392), actions through adaptive norms that are zero at first. The model
predicts the velocity of a straight path from frame to noise (flow matching, arXiv 2210.02747).
"""

from typing import Any, Self

from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.kits.pictures.models.blocks import turn
from mmspec_video.models.keys import FrameKeys, LayerKeys, positions_and_mask
from mmspec_video.models.layers import (
    FinalLayer,
    Mlp,
    PatchEmbed,
    TimeEmbedding,
    attention,
    frame_rotary,
    modulated,
    modulation,
    plain_norm,
    unpatchified,
)
from mmspec_video.sampling import ConsistencySampler, FlowSampler, Sampler

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"dim": 64, "depth": 2, "heads": 2},
    "3m": {"dim": 160, "depth": 6, "heads": 5},
    "130m": {"dim": 768, "depth": 12, "heads": 12},
    "310m": {"dim": 1024, "depth": 16, "heads": 16},
}
"""Width, blocks and heads by name; the last three stand in the paper's table of models."""
SAMPLERS: dict[str, type[FlowSampler]] = {
    "flow": FlowSampler,
    "consistency": ConsistencySampler,
}
TIME_SCALE = 1000.0  # the time embedding reads times in [0, 1] multiplied by this


class BlockCausalAttention(nn.Module):
    """Attention of cells to all cells of their own frame and of earlier frames."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, rotary: Tensor, seen: Tensor | None, keys: LayerKeys | None) -> Tensor:
        """`x [row, frame, cell, dim]`, `rotary [row, frame · cell, …]`, `seen [row, frame, slot]`."""
        frames, cells = x.shape[1:3]
        query, key, value = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        query, key = (turn(t.flatten(1, 2), rotary).unflatten(1, (frames, cells)) for t in (query, key))
        if keys is not None:
            key, value = keys.update(key, value)
        mask = None if seen is None else seen.repeat_interleave(cells, 1).repeat_interleave(cells, 2)[:, None]
        query, key, value = (t.flatten(1, 2) for t in (query, key, value))
        out = attention(query, key, value, mask)
        return self.to_out(out.unflatten(1, (frames, cells)))


class BlockCausalLayer(nn.Module):
    """Attention and an MLP; the condition shifts, scales and gates both, and gates are zero at first (adaLN-zero)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = plain_norm(dim), BlockCausalAttention(dim, heads)
        self.norm2, self.mlp = plain_norm(dim), Mlp(dim, 4 * dim)
        self.adaLN_modulation = modulation(dim, 6)

    def forward(
        self, x: Tensor, condition: Tensor, rotary: Tensor, seen: Tensor | None, keys: LayerKeys | None
    ) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN_modulation(condition).chunk(6, -1)
        x = x + gate1[:, :, None] * self.attn(modulated(self.norm1(x), shift1, scale1), rotary, seen, keys)
        return x + gate2[:, :, None] * self.mlp(modulated(self.norm2(x), shift2, scale2))


class NextFrameDiT(ModelMixin, ConfigMixin):
    """The transformer."""

    vectors = None  # the model reads actions by their ids

    @register_to_config
    def __init__(
        self,
        channels: int = 8,  # of a latent frame, as height and width
        height: int = 8,
        width: int = 8,
        actions: int = 4,  # the id `actions` stands for "unknown", where no action led to a frame
        *,
        patch: int = 1,  # side of a cell, in latents
        dim: int = 64,
        depth: int = 2,
        heads: int = 2,
        frames: int = 8,  # of the attention window, the newest one included
        objective: str = "flow",  # `flow` (flow matching) or `consistency` (a student)
        steps: int = 8,  # default number of steps from noise to a frame
        context_time: float = 0.0,  # time that the model reads for finished frames
    ) -> None:
        super().__init__()
        if objective not in SAMPLERS:
            raise ValueError(f"objective is one of {', '.join(SAMPLERS)}, not {objective!r}")
        if dim % heads or dim // heads % 16:
            raise ValueError(f"{heads} heads do not divide a width of {dim} into widths that are multiples of 16")
        if height % patch or width % patch:
            raise ValueError(f"patches of {patch} do not tile frames of {height} × {width}")
        self.x_embedder = PatchEmbed(channels, dim, patch)
        self.t_embedder = TimeEmbedding(dim)
        self.action_embedder = nn.Embedding(actions + 1, dim)
        self.blocks = nn.ModuleList(BlockCausalLayer(dim, heads) for _ in range(depth))
        self.final_layer = FinalLayer(dim, patch * patch * channels)
        _initialise(self)

    @classmethod
    def of_size(cls, size: str, **config: Any) -> Self:
        """One of `SIZES`, with random weights."""
        if size not in SIZES:
            raise ValueError(f"there is no size {size!r}; there are {', '.join(SIZES)}")
        return cls(**SIZES[size], **config)

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        return self.config.channels, self.config.height, self.config.width

    @property
    def window(self) -> int:
        return self.config.frames

    @property
    def action_count(self) -> int:
        return self.config.actions

    @property
    def sampler(self) -> Sampler:
        return SAMPLERS[self.config.objective](self.config.steps, self.config.context_time)

    def forward(
        self,
        x: Tensor,
        time: Tensor,
        actions: Tensor,
        position: Tensor | None = None,
        seen: Tensor | None = None,
        keys: FrameKeys | None = None,
    ) -> Tensor:
        """The velocity, noise minus frame, of every frame of `x [row, frame, channel, height, width]`, in its shape.

        `time [row, frame]` in [0, 1] says how noisy a frame is: 0 is the clean frame, 1 is noise. `actions [row,
        frame]` int64 led to each frame; `position [row, frame]` are numbers of the frames, by default from 0 on. `seen
        [row, frame, slot]` bool says which frames each frame sees, the ones in `keys` first; default: all of them, and
        causally the frames of the pass. `keys` is the cache of earlier frames; the pass adds its own.
        """
        position, seen = positions_and_mask(x, position, seen, keys)
        patch, head = self.config.patch, self.config.dim // self.config.heads
        grid = self.config.height // patch, self.config.width // patch
        rotary = frame_rotary(position, *grid, head).flatten(1, 2)
        condition = self.t_embedder(TIME_SCALE * time) + self.action_embedder(actions)
        x = self.x_embedder(x)
        for i, block in enumerate(self.blocks):
            x = block(x, condition, rotary, seen, None if keys is None else keys[i])
        return unpatchified(self.final_layer(x, condition), grid[0], patch)


def _initialise(model: NextFrameDiT) -> None:
    """DiT's initial weights: modulations and the output layer are zero, so that every block is the identity."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for name, weights in model.named_parameters():
        if name.startswith(("t_embedder.", "action_embedder.")) and name.endswith(".weight"):
            nn.init.normal_(weights, std=0.02)
        elif "adaLN_modulation." in name or name.startswith("final_layer.linear."):
            nn.init.zeros_(weights)
