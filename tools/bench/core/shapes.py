"""The shapes that are measured: two dense language models, experts, Mamba-2, pictures, frames of a game.

What needs diffusers is imported when its shape is made, so that language models are measured without it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.registry.suggest import unknown
from mmspec_text.plan.work import SIZES, numbers_of_cache, random_model
from tools.bench.core.shape import Shape, Workload

FIRST = 3
"""The smallest id of a prompt: smaller ones are padding, begin and end of a text."""


def language(device: torch.device, dtype: torch.dtype, **numbers: Any) -> Workload:
    """A causal language model; `numbers` are those of `SIZES`."""
    model = random_model(device, dtype, **numbers)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0

    def prompt(rows: int, context: int) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.randint(FIRST, model.config.vocab_size, (rows, context), generator=generator).to(model.device)

    return Workload(model, prompt, numbers_of_cache(model.config))


def llamagen(device: torch.device, dtype: torch.dtype, **numbers: Any) -> Workload:
    """LlamaGen under guidance: a picture's prompt is its class."""
    from mmspec.kits.pictures.conditions import Condition
    from mmspec_image.models.llamagen import LlamaGenTransformer

    with torch.device(device):
        model = LlamaGenTransformer(**numbers).eval().requires_grad_(False)
    nn.Module.to(model, dtype)  # past diffusers' own, which warns
    config = model.config
    heads = config.n_kv_head or config.n_head
    slot = 2 * 2 * config.n_layer * heads * (config.dim // config.n_head)  # both halves of the guidance

    def prompt(rows: int, context: int) -> Condition:
        return Condition(torch.arange(rows, device=device) % config.num_classes)

    return Workload(model, prompt, slot, units=2)


def frames(device: torch.device, dtype: torch.dtype, *, size: str, **numbers: Any) -> Workload:
    """The transformer of frames, its weights in float32; a prompt is some frames, and actions come from a player.

    A node is a frame, made in several passes of the network. `size` is a size of `NextFrameDiT`.
    """
    from mmspec_video.models.next_frame import NextFrameDiT
    from mmspec_video.targets.tree import FramePrompt

    with torch.device(device):
        model = NextFrameDiT.of_size(size, **numbers).eval().requires_grad_(False)
    config = model.config
    cells = (config.height // config.patch) * (config.width // config.patch)

    def prompt(rows: int, context: int) -> FramePrompt:
        given = torch.zeros(rows, context, *model.frame_shape, device=device)
        unknown = torch.full((rows, context), config.actions, device=device)
        return FramePrompt(given, unknown, unknown.new_zeros(rows))

    def truth(rows: int) -> Tensor:
        return torch.zeros(rows, 1, dtype=torch.int64, device=device)

    slot = 2 * config.depth * config.dim * cells
    half = None if dtype == torch.float32 else dtype
    return Workload(model, prompt, slot, units=cells, passes=config.steps, autocast=half, truth=truth)


FRAME_SIZE = "310m"
FRAMES: Mapping[str, Any] = {
    "channels": 16, "height": 28, "width": 48, "actions": 4, "patch": 2, "frames": 32, "steps": 4
}  # fmt: skip
_SMALL: Mapping[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512,
}  # fmt: skip

SHAPES = (
    Shape("llama-1b", language, SIZES["llama-1b"], _SMALL),
    Shape("llama-8b", language, SIZES["llama-8b"], _SMALL),
    Shape(
        "qwen3-moe-30b-a3b",
        language,
        SIZES["qwen3-moe-30b-a3b"],
        {**_SMALL, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    Shape(  # arXiv 2405.21060
        "mamba2-2.7b",
        language,
        SIZES["mamba2-2.7b"],
        {"hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 16, "state_size": 8, "vocab_size": 512},
    ),
    Shape(  # arXiv 2406.06525: classes, pictures of 384 pixels
        "llamagen-3b",
        llamagen,
        {"vocab_size": 16384, "grid": 24, "dim": 3200, "n_layer": 24, "n_head": 32},
        {"vocab_size": 64, "grid": 16, "dim": 32, "n_layer": 2, "n_head": 4, "multiple_of": 16, "num_classes": 5},
        contexts=(1,),
        generates=False,
    ),
    Shape(  # arXiv 2506.01380
        "nfd-310m",
        frames,
        {"size": FRAME_SIZE, **FRAMES},
        {"size": "tiny", "channels": 4, "height": 4, "width": 4},
        contexts=(FRAMES["frames"] // 2,),  # while all frames fit the window, their keys stay in the cache
        nodes=(1,),
        generates=False,
    ),
)


def chosen_shapes(names: str | None) -> list[Shape]:
    """The shapes that a user named, joined by commas; None: all."""
    known = {shape.name: shape for shape in SHAPES}
    wanted = list(known) if names is None else names.split(",")
    for name in wanted:
        if name not in known:
            raise ValueError(unknown("shape", name, known))
    return [known[name] for name in wanted]
