"""Pictures: a tiny LlamaGen and a tiny Janus with random weights."""

from collections.abc import Sequence
from functools import cache

import torch
from transformers import GenerationConfig, JanusConfig, JanusVisionConfig, JanusVQVAEConfig, LlamaConfig

from mmspec.kits.pictures.conditions import Condition
from mmspec.testing import Example
from mmspec_image.models.janus import JanusForImages
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.rules.grouped import GroupedOptions
from mmspec_image.targets.janus import JanusPrompt, JanusTarget
from mmspec_image.targets.llamagen import LlamaGenTarget

CLASSES = 5
WORDS, PAD, BEGIN, IMAGE = 20, 0, 1, 2
"""Vocabulary of the tiny Janus, and its special tokens."""


@cache
def _tiny() -> LlamaGenTransformer:
    """6 codes on 8 × 8 cells; weights large enough that codes depend on earlier ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = LlamaGenTransformer(6, 8, dim=32, n_layer=2, n_head=4, multiple_of=16, num_classes=CLASSES)
        for weights in model.parameters():
            weights.data.copy_(torch.randn_like(weights) * (0.4 if weights.dim() > 1 else 1.0))
    return model.eval()


def llamagen() -> Example:
    """Classes as prompts."""

    def prompt(rows: Sequence[int]) -> Condition:
        return Condition(torch.tensor([row % CLASSES for row in rows]))

    return Example(target=LlamaGenTarget(_tiny()), prompt=prompt, guidance=2.0)


def tiny_janus(codes: int, grid: int) -> JanusForImages:
    """A Janus without a part that reads pictures; weights large enough that codes depend on earlier ones."""
    text = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=PAD,
        bos_token_id=BEGIN,
        eos_token_id=None,
    )
    sees = {"hidden_size": 16, "num_hidden_layers": 0, "num_attention_heads": 2, "projection_dim": 32}
    vq = JanusVQVAEConfig(
        embed_dim=8,
        num_embeddings=codes,
        latent_channels=32,
        base_channels=32,
        channel_multiplier=[1, 1],
        num_res_blocks=1,
        projection_dim=32,
        image_token_embed_dim=32,
    )
    vision = JanusVisionConfig(**sees, image_size=2 * grid, patch_size=2, num_image_tokens=grid**2)
    config = JanusConfig(text_config=text, vision_config=vision, vq_config=vq, image_token_id=WORDS - 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = JanusForImages(config).eval()
        for name, weights in model.named_parameters():
            if weights.dim() == 2 and "vqmodel" not in name:
                weights.data.copy_(torch.randn_like(weights) * 0.4)
    model.generation_config = GenerationConfig(
        bos_token_id=BEGIN, pad_token_id=PAD, generation_kwargs={"boi_token_id": IMAGE}
    )
    return model


@cache
def _janus_target() -> JanusTarget:
    return JanusTarget(tiny_janus(6, 8))


def janus() -> Example:
    """Prompts of several lengths, under guidance."""

    def prompt(rows: Sequence[int]) -> JanusPrompt:
        lengths = [7 - row % 3 for row in rows]
        ids = torch.full((len(rows), max(lengths)), PAD)
        for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            words = [3 + (row + place * place) % (WORDS - 4) for place in range(length - 2)]
            ids[i, -length:] = torch.tensor([BEGIN, *words, IMAGE])
        return JanusPrompt(ids, (ids != PAD).long())

    return Example(target=_janus_target(), prompt=prompt, guidance=2.0)


def grouped() -> Example:
    """Groups wide enough to alter something on a codebook of random vectors."""
    return Example(options=GroupedOptions(size=4, difference=1.0, distance=1e9), strict={"size": 1})


EXAMPLES = {
    "image:llamagen": llamagen,
    "image:janus": janus,
    "image:grouped": grouped,
}
