"""Small models that read a picture and go on in text, and prompts with one picture in each, made without a download.

Pictures are drawn from the seed and laid out as the model's own image processor would lay them out. Rows have texts,
and where the model takes them pictures, of several sizes, so that their lengths differ; padding is on the left.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange, repeat
from torch import Tensor
from transformers import AutoModelForImageTextToText, PreTrainedModel

from tests.support.random_models import random_model
from tests.support.zoo.recipe import Recipe

START, END, IMAGE, VIDEO = 124, 125, 126, 127
"""Ids of the vocabulary that stand for a picture's borders and patches; texts use the ids below."""

PATCH, SIZE = 8, 32

Layout = Callable[[list[Tensor]], tuple[dict[str, Tensor], list[int]]]
"""Pictures `[3, height, width]` → what the model takes, and how many tokens each picture stands for."""


@dataclass(frozen=True)
class VisionRecipe:
    """A small model that reads pictures."""

    recipe: Recipe  # of the model; its configuration has a part for text and a part for pictures
    layout: Layout  # how pictures are handed over
    marks: str | None = None  # name of the argument that marks image tokens among others, where the model wants one
    # height and width of the picture of every row, in pixels, again and again
    sizes: tuple[tuple[int, int], ...] = ((SIZE, SIZE),)

    @property
    def family(self) -> str:
        """The family for which the architecture stands."""
        return self.recipe.family

    def model(self, seed: int = 0) -> PreTrainedModel:
        """The model: float32, in evaluation mode, without an end-of-sequence token; the caller's seed is kept."""
        recipe = self.recipe
        return random_model(
            recipe.configuration(),
            seed=seed + recipe.salt,
            gain=recipe.gain,
            head=recipe.head,
            embedding=recipe.embedding,
            auto=AutoModelForImageTextToText,
        )

    def inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        """Arguments of `generate`: a text, a picture and a text in every row; rows of several lengths."""
        generator = torch.Generator().manual_seed(seed)
        sizes = [self.sizes[row % len(self.sizes)] for row in range(batch)]
        pictures = [torch.randn(3, height, width, generator=generator) for height, width in sizes]
        given, counts = self.layout(pictures)
        rows = []
        for row, count in enumerate(counts):
            before, after = (torch.randint(3, START, (n,), generator=generator) for n in (3, 9 - 3 * (row % 3)))
            picture = torch.tensor([START, *[IMAGE] * count, END])
            rows.append(torch.cat([before, picture, after]))
        longest = max(map(len, rows))
        ids = torch.stack([torch.cat([torch.zeros(longest - len(row), dtype=torch.int64), row]) for row in rows])
        marks = {} if self.marks is None else {self.marks: (ids == IMAGE).int()}
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), **given, **marks}


def patches(merge: int) -> Layout:
    """Qwen: a picture is a list of flat patches, neighbours that will be merged one after another, each frame twice."""

    def layout(pictures: list[Tensor]) -> tuple[dict[str, Tensor], list[int]]:
        flat = [
            rearrange(
                repeat(picture, "c h w -> t c h w", t=2),
                "t c (h m p) (w n q) -> (h w m n) (c t p q)",
                m=merge,
                n=merge,
                p=PATCH,
                q=PATCH,
            )
            for picture in pictures
        ]
        grids = [[1, picture.shape[1] // PATCH, picture.shape[2] // PATCH] for picture in pictures]
        given = {"pixel_values": torch.cat(flat), "image_grid_thw": torch.tensor(grids)}
        return given, [height * width // merge**2 for _, height, width in grids]

    return layout


def whole(tokens: int, tiles: bool = False) -> Layout:
    """Most others: pictures of one size, `[row, 3, height, width]`, or `[row, tile, 3, height, width]`."""

    def layout(pictures: list[Tensor]) -> tuple[dict[str, Tensor], list[int]]:
        pixels = torch.stack(pictures)
        return {"pixel_values": pixels[:, None] if tiles else pixels}, [tokens] * len(pictures)

    return layout


def _text(model_type: str, **more: Any) -> Mapping[str, Any]:
    return Recipe(model_type, "", more).configuration().to_dict()


TOWER = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=SIZE, patch_size=PATCH
)
QWEN = dict(image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START, vision_end_token_id=END)
QWEN_TOWER = dict(depth=2, num_heads=2, patch_size=PATCH, spatial_merge_size=2, temporal_patch_size=2)
THREE_AXES = dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 3, 3]))
RAGGED = ((32, 32), (32, 48), (16, 64))

VISION = {
    "qwen2_vl": VisionRecipe(
        Recipe(
            "qwen2_vl",
            "three-axes",
            dict(
                QWEN,
                text_config=_text("qwen2_vl_text", **THREE_AXES),
                vision_config=dict(QWEN_TOWER, embed_dim=32, hidden_size=64, mlp_ratio=2),
            ),
        ),
        patches(2),
        "mm_token_type_ids",
        RAGGED,
    ),
    "qwen2_5_vl": VisionRecipe(
        Recipe(
            "qwen2_5_vl",
            "three-axes",
            dict(
                QWEN,
                text_config=_text("qwen2_5_vl_text", **THREE_AXES),
                vision_config=dict(
                    QWEN_TOWER,
                    hidden_size=32,
                    out_hidden_size=64,
                    intermediate_size=48,
                    window_size=32,
                    fullatt_block_indexes=[1],
                ),
            ),
        ),
        patches(2),
        "mm_token_type_ids",
        RAGGED,
    ),
    "qwen3_vl": VisionRecipe(
        Recipe(
            "qwen3_vl",
            "three-axes",
            dict(
                QWEN,
                text_config=_text("qwen3_vl_text", **THREE_AXES),
                vision_config=dict(
                    QWEN_TOWER,
                    hidden_size=32,
                    out_hidden_size=64,
                    intermediate_size=48,
                    num_position_embeddings=16,
                    deepstack_visual_indexes=[0],
                ),
            ),
        ),
        patches(2),
        "mm_token_type_ids",
        RAGGED,
    ),
    "exaone4_5": VisionRecipe(
        Recipe(
            "exaone4_5",
            "counts-slots-itself",
            dict(
                image_token_id=IMAGE,
                video_token_id=VIDEO,
                text_config=_text("exaone4"),
                vision_config=dict(
                    QWEN_TOWER,
                    num_key_value_heads=2,
                    hidden_size=32,
                    out_hidden_size=64,
                    intermediate_size=48,
                    window_size=32,
                    fullatt_block_indexes=[1],
                ),
            ),
        ),
        patches(2),
        sizes=RAGGED,
    ),
    "llava": VisionRecipe(
        Recipe(
            "llava",
            "prefix",
            dict(
                image_token_index=IMAGE,
                image_seq_length=16,
                text_config=_text("llama"),
                vision_config=dict(TOWER, model_type="clip_vision_model"),
            ),
        ),
        whole(16),
    ),
    "gemma3": VisionRecipe(
        Recipe(
            "gemma3",
            "both-ways-in-a-picture",
            dict(
                boi_token_index=START,
                eoi_token_index=END,
                image_token_index=IMAGE,
                mm_tokens_per_image=4,
                text_config=_text(
                    "gemma3_text",
                    query_pre_attn_scalar=16,
                    sliding_window=12,
                    layer_types=["sliding_attention", "full_attention"] * 2,
                ),
                vision_config=dict(TOWER, model_type="siglip_vision_model"),
            ),
        ),
        whole(4),
        "token_type_ids",
    ),
    "paligemma": VisionRecipe(
        Recipe(
            "paligemma",
            "both-ways-in-a-prompt",
            dict(
                image_token_index=IMAGE,
                projection_dim=64,
                text_config=_text("gemma"),
                vision_config=dict(TOWER, model_type="siglip_vision_model", vision_use_head=False),
            ),
        ),
        whole(16),
        "token_type_ids",
    ),
    "paligemma2": VisionRecipe(
        Recipe(
            "paligemma",
            "both-ways-in-a-prompt",
            dict(
                image_token_index=IMAGE,
                projection_dim=64,
                text_config=_text("gemma2", query_pre_attn_scalar=16, sliding_window=12),
                vision_config=dict(TOWER, model_type="siglip_vision_model", vision_use_head=False),
            ),
        ),
        whole(16),
        "token_type_ids",
    ),
    "idefics3": VisionRecipe(
        Recipe(
            "idefics3",
            "prefix",
            dict(image_token_id=IMAGE, scale_factor=2, text_config=_text("llama"), vision_config=TOWER),
        ),
        whole(4, tiles=True),
    ),
    "smolvlm": VisionRecipe(
        Recipe(
            "smolvlm",
            "prefix",
            dict(image_token_id=IMAGE, scale_factor=2, text_config=_text("llama"), vision_config=TOWER),
        ),
        whole(4, tiles=True),
    ),
    "internvl": VisionRecipe(
        Recipe(
            "internvl",
            "prefix",
            dict(
                image_token_id=IMAGE,
                image_seq_length=4,
                downsample_ratio=0.5,
                text_config=_text("qwen2"),
                vision_config=dict(TOWER, image_size=[SIZE, SIZE], patch_size=[PATCH, PATCH]),
            ),
        ),
        whole(4),
    ),
}
"""Name → recipe of a model that reads pictures."""
