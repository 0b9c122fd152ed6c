"""Language models that write pictures: tiny, with random weights."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers import (
    ChameleonConfig,
    Emu3Config,
    Emu3ForConditionalGeneration,
    GlmImageConfig,
    GlmImageForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
)

from mmspec.core.guided import NULL_INPUTS
from mmspec.testing import Example
from mmspec_image.constraint import LUMINA_ROW_END, lumina_size
from mmspec_image.models.chameleon import ChameleonForImages
from mmspec_image.models.grid_language import Emu35ForImages
from mmspec_image.targets.glm_image import GlmImageTarget
from mmspec_image.targets.written import ChameleonTarget, Emu3Target, GridLanguageTarget, OwnPicturesTarget

PAD, IMAGE_START, END = 190, 64, 65
"""Ids of the tiny GLM-Image; its codes are those below 64."""

VISUAL = 160
"""The tiny Emu3's first visual id; it has 16."""
ROW_END, IMAGE_END, BEGIN, END_OF_IMAGE, IMAGE = 151, 152, 153, 154, 155


@cache
def tiny_glm_image() -> GlmImageForConditionalGeneration:
    """72 ids that may be written; attention strong enough that a wrong position changes codes."""
    text = {
        "vocab_size": 200,
        "vision_vocab_size": 72,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": PAD,
        "eos_token_id": END,
        "rope_parameters": {
            "rope_theta": 1e4,
            "rope_type": "default",
            "mrope_section": [2, 3, 3],
            "partial_rotary_factor": 1.0,
        },
    }
    vision = {"hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "image_size": 64, "patch_size": 8}
    config = GlmImageConfig(
        text_config=text,
        vision_config={**vision, "depth": 1},
        vq_config={"embed_dim": 16, "num_embeddings": 64, "latent_channels": 32},
        image_token_id=191,
        image_start_token_id=IMAGE_START,
        image_end_token_id=END,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return strengthened(GlmImageForConditionalGeneration(config))


def strengthened(model: Any) -> Any:
    """The model with weights of N(0, 0.35) and embeddings of N(0, 1): with transformers' own, attention is uniform."""
    for module in model.modules():
        for weights in module.parameters(recurse=False):
            if weights.dim() == 2:
                scale = 1.0 if isinstance(module, nn.Embedding) else 0.35
                weights.data.copy_(torch.randn_like(weights) * scale)
    return model.eval()


def glm_prompt(
    rows: Sequence[int], picture: tuple[int, int] = (6, 8), preview: tuple[int, int] = (3, 4)
) -> dict[str, torch.Tensor]:
    """Prompts of several lengths, padded on the left, that ask for pictures of one size."""
    lengths = [8 - row % 3 for row in rows]
    ids = torch.full((len(rows), max(lengths)), PAD)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        words = [70 + (7 * row + place * place) % 100 for place in range(length - 1)]
        ids[i, -length:] = torch.tensor([*words, IMAGE_START])
    grids = torch.tensor([[1, *picture], [1, *preview]]).repeat(len(rows), 1)
    each = torch.full((len(rows),), 2)
    return {
        "input_ids": ids,
        "attention_mask": (ids != PAD).long(),
        "image_grid_thw": grids,
        "images_per_sample": each,
    }


@cache
def _target() -> GlmImageTarget:
    return GlmImageTarget(tiny_glm_image())


def glm_image() -> Example:
    """Pictures of 8 × 6 cells, behind previews of 4 × 3."""
    return Example(target=_target(), prompt=lambda rows: glm_prompt(rows, (8, 6), (4, 3)))


@cache
def tiny_emu3() -> Emu3ForConditionalGeneration:
    """200 ids, of which 16 are visual."""
    special = {"<image>": 150, "<|extra_200|>": ROW_END, "<|extra_201|>": IMAGE_END, "<|image start|>": BEGIN}
    special |= {"<|image end|>": END_OF_IMAGE, "<|image token|>": IMAGE}
    text = {
        "vocab_size": 200,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    vq = {
        "codebook_size": 16,
        "embed_dim": 4,
        "latent_channels": 4,
        "base_channels": 32,
        "channel_multiplier": [1, 1],
        "num_res_blocks": 1,
        "attn_resolutions": [],
        "hidden_size": 32,
        "temporal_downsample_factor": 2,
    }
    names = special | {f"<|visual token {i:06d}|>": VISUAL + i for i in range(16)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return strengthened(
            Emu3ForConditionalGeneration(Emu3Config(text_config=text, vq_config=vq, vocabulary_map=names))
        )


def emu3_prompt(rows: Sequence[int]) -> dict[str, Any]:
    """Prompts of several lengths, padded on the left."""
    lengths = [8 - row % 3 for row in rows]
    ids = torch.zeros(len(rows), max(lengths), dtype=torch.int64)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        words = [3 + (7 * row + place * place) % 130 for place in range(length - 1)]
        ids[i, -length:] = torch.tensor([*words, IMAGE])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def guided(rows: Sequence[int]) -> dict[str, Any]:
    """Prompts, and shorter ones that guidance leads away from."""
    given = emu3_prompt(rows)
    return {**given, NULL_INPUTS: {name: value[:, -3:] for name, value in given.items()}}


def emu3() -> Example:
    """Prompts of texts: a picture's constraint and guidance belong to a call."""
    return Example(target=_emu3_target(), prompt=emu3_prompt)


@cache
def _emu3_target() -> Emu3Target:
    return Emu3Target(tiny_emu3())


BREAK, EOSS, LUMINA_END, FIRST_SIZE, FIRST_CODE = 21, 22, 23, 24, 40
"""Ids of the tiny Chameleon: begin and end of a picture, row end, the size of 2 cells, the first of 16 codes."""


@cache
def tiny_chameleon() -> ChameleonForImages:
    """64 ids, of which 16 are codes; sizes of 2 to 8 cells."""
    names = {"<image>": 20, "<racm3:break>": BREAK, "<eoss>": EOSS, LUMINA_ROW_END: LUMINA_END}
    names |= {lumina_size(2 * half): FIRST_SIZE + half - 1 for half in range(1, 5)}
    letters = ("".join(chr(ord("A") + int(digit)) for digit in str(code)) for code in range(16))
    names |= {f"IMGIMG{written}Z": FIRST_CODE + code for code, written in enumerate(letters)}
    vq = {
        "embed_dim": 8,
        "num_embeddings": 16,
        "latent_channels": 8,
        "resolution": 16,
        "base_channels": 32,
        "channel_multiplier": [1, 1],
        "num_res_blocks": 1,
    }
    config = ChameleonConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        pad_token_id=0,
        vq_config=vq,
        vocabulary_map=names,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return strengthened(ChameleonForImages(config))


def chameleon_prompt(rows: Sequence[int]) -> dict[str, Any]:
    """Prompts of several lengths, padded on the left, that end where a picture begins."""
    lengths = [8 - row % 3 for row in rows]
    ids = torch.zeros(len(rows), max(lengths), dtype=torch.int64)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        words = [3 + (7 * row + place * place) % 16 for place in range(length - 1)]
        ids[i, -length:] = torch.tensor([*words, BREAK])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


@cache
def _chameleon_target() -> ChameleonTarget:
    return ChameleonTarget(tiny_chameleon())


def chameleon() -> Example:
    """Prompts of pictures; the constraint and guidance belong to a call."""
    return Example(target=_chameleon_target(), prompt=chameleon_prompt)


@cache
def tiny_grid_language() -> Emu35ForImages:
    """64 ids, of which the last 16 are codes."""
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        pad_token_id=0,
        grid_language={"name": "emu3.5", "first": 48, "codes": 16},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return strengthened(Emu35ForImages(config))


@cache
def _grid_language_target() -> GridLanguageTarget:
    return GridLanguageTarget(tiny_grid_language())


def grid_language() -> Example:
    """Prompts of pictures; the constraint and guidance belong to a call."""
    return Example(target=_grid_language_target(), prompt=chameleon_prompt)


@cache
def _own_pictures_target() -> OwnPicturesTarget:
    table = torch.randn(16, 4, generator=torch.Generator().manual_seed(2))
    return OwnPicturesTarget(tiny_llama(), vq=table, codes=range(48, 64))


@cache
def tiny_llama() -> LlamaForCausalLM:
    """64 ids, of which the last 16 are codes of somebody's VQ."""
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(
        vocab_size=64, **sizes, **heads, max_position_embeddings=512, pad_token_id=0, eos_token_id=None
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return strengthened(LlamaForCausalLM(config))


def own_pictures() -> Example:
    """Prompts of pictures; guidance belongs to a call."""
    return Example(target=_own_pictures_target(), prompt=chameleon_prompt)


EXAMPLES = {
    "image:glm-image": glm_image,
    "image:emu3": emu3,
    "image:chameleon": chameleon,
    "image:grid-language": grid_language,
    "image:own-pictures": own_pictures,
}
