"""Families of models that draw pictures and films: the shipped ones, and tiny random ones of drawn configurations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
from transformers import ChameleonConfig, GemmaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

import mmspec
from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec_continuous.mar_pipeline import MARPipeline
from mmspec_continuous.models.mar import MAR
from mmspec_continuous.pipeline import ContinuousTextToImagePipeline, mark
from mmspec_image.grid_language_pipeline import GridLanguagePipeline
from mmspec_image.janus_pipeline import JanusPipeline
from mmspec_image.models.grid_language import BODIES, GRIDS
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.pipeline import TextToImagePipeline
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.oasis import OasisDiT
from mmspec_video.models.oasis_vae import OasisVAE
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.pipeline import NextFramePipeline
from tests.support.examples.continuous import tiny
from tests.support.examples.image import tiny_janus
from tests.support.examples.written import strengthened, tiny_glm_image
from tests.support.picture_pipes import (
    caption_tokenizer,
    chameleon_pipe,
    emu3_pipe,
    janus_words,
    llamagen_vq,
    quiet,
    sharp,
    tokenizer,
    vq,
)
from tests.support.worlds import tiny_vae, tiny_vq
from tools.train.pictures.latents import measure, small_kl

WORDS = ["<pad>", "<unk>", "a", "red", "blue", "fox", "bird", "heart", "cat", "face", "apple", "star"]
LONGEST = 6
"""Words of the longest caption."""


def small_grids() -> Any:
    """A context in which Liquid, whose pictures have one size, draws 3 × 4 codes."""
    return patch.dict(GRIDS, liquid=replace(GRIDS["liquid"], size=(3, 4)))


@dataclass(frozen=True)
class Kind:
    """A family of models.

    Attributes:
        make: Its pipeline, from settings.
        settings: Values of each setting of a configuration.
        sizes: Heights and widths in pixels that a call may name; none: it names none.
        prompts: Captions; none: the model draws classes, or goes on from frames.
        units: `codes`, `tokens` or `frames`: what a call's output has; `ids`: its model is enabled, and generates.
        rows: The most rows of a call.
        unused: Arguments of a call for which it has no use.
        shipped: Whether the settings are those of a file that we ship.
    """

    make: Callable[..., Any]
    settings: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    sizes: Sequence[tuple[int, int]] = ()
    prompts: Sequence[str] = ("a red fox", "blue bird", "a fox", "red red red bird")
    units: str = "codes"
    rows: int = 6
    unused: Sequence[str] = ()
    shipped: bool = False


def llamagen(caption: bool, **settings: Any) -> Any:
    sizes: dict[str, Any] = {"vocab_size": 24, "grid": 3, "dim": 32, "n_layer": 2, "n_head": 4, "multiple_of": 16}
    weights = settings.pop("weights", 1)
    encoder = words = None
    if caption:
        torch.manual_seed(3)
        longest = settings.get("cls_token_num", LONGEST)
        sizes |= {"model_type": "t2i", "caption_dim": 12, "cls_token_num": longest}
        encoder, words = captions(longest), caption_tokenizer(WORDS, longest)
    else:
        sizes |= {"num_classes": 5}
    model = sharp(LlamaGenTransformer(**{**sizes, **settings}), weights)
    return quiet(TextToImagePipeline(model, llamagen_vq(model.config.vocab_size), encoder, words))


def captions(longest: int = LONGEST) -> CaptionEncoder:
    encoder = CaptionEncoder(len(WORDS), longest, 12, layers=1, heads=2)
    encoder.tokens.weight.data.mul_(3)  # captions that differ, differ clearly
    return encoder.eval()


def janus(codes: int = 16, grid: int = 3) -> Any:
    return quiet(JanusPipeline(tiny_janus(codes, grid), janus_words(grid**2)))


BODY = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "max_position_embeddings": 512}
CONFIGS = {"liquid": GemmaConfig, "simplear": Qwen2Config, "emu3.5": Qwen3Config, "lumina2": ChameleonConfig}


def grid_language(
    name: str, codes: int = 16, layers: int = 2, key_heads: int = 2, pixels: bool = True, weights: int = 0
) -> Any:
    """A language model of one grid, whose codes stand behind all words."""
    said = grid_words(GRIDS[name])
    first = len(said)
    own: dict[str, Any] = {"head_dim": 8} if name in ("liquid", "emu3.5") else {}
    of = {"name": name, "first": first, "codes": codes}
    own |= {"vocabulary_map": {"<image>": first - 1}} if name == "lumina2" else {}
    depth = {"num_hidden_layers": layers, "num_key_value_heads": key_heads, "pad_token_id": 0}
    config = CONFIGS[name](vocab_size=first + codes, **depth, **own, **BODY, grid_language=of)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(weights)
        model = strengthened(BODIES[name](config))
    return quiet(GridLanguagePipeline(model, said, vq(codes) if pixels and name != "simplear" else None))


def grid_words(grid: Any) -> PreTrainedTokenizerFast:
    """A tokenizer with the special words of a grid, and few others."""
    special = {word for word in (*grid.needed, *grid.ends, grid.row_end) if word}
    special |= {word for word in ("<boi>", "<unconditional>") if word in grid.prompt + grid.null}
    special |= {f"<reserved{8800 + rows:05d}>" for rows in (1, 2, 3)} if grid.multiple > 1 else set()
    return tokenizer({word: 19 + i for i, word in enumerate(sorted(special))}, {})


def continuous(weights: int = 1, guided: bool = True, **settings: Any) -> Any:
    grid = settings.get("grid", 3)
    torch.manual_seed(3)
    vae = small_kl(4, 2 * grid, (8, 8), groups=4).eval()
    measure(vae, 3 + 2 * torch.randn(50, grid**2, 4))
    sizes = {"grid": grid, "caption_dim": 12, "cls_token_num": LONGEST, "token_dim": 4, "null_caption": guided}
    model = tiny(weights, **{**sizes, "latents": mark(vae), **settings})
    return quiet(ContinuousTextToImagePipeline(model, vae, captions(), caption_tokenizer(WORDS, LONGEST)))


ACTIONS = 4


def lively(model: Any, spread: float, weights: int) -> Any:
    """Weights that let nothing pass unnoticed; modulations too, which begin at zero."""
    generator = torch.Generator().manual_seed(weights)
    for each in model.parameters():
        each.data.copy_(torch.randn(each.shape, generator=generator) * spread)
    return model.eval()


def token_world(weights: int = 1, **settings: Any) -> Any:
    sizes = {"frames": 5, "dim": 32, "n_layer": 1, "n_head": 2, "multiple_of": 16}
    return quiet(
        NextFramePipeline(lively(TokenWorldModel(10, ACTIONS, 4, 4, **{**sizes, **settings}), 0.6, weights), tiny_vq())
    )


def next_frame(weights: int = 1, **settings: Any) -> Any:
    sizes = {"patch": 2, "dim": 32, "depth": 1, "heads": 2, "frames": 4, "steps": 2}
    return quiet(
        NextFramePipeline(lively(NextFrameDiT(8, 4, 4, ACTIONS, **{**sizes, **settings}), 0.15, weights), tiny_vae())
    )


def oasis(weights: int = 1, **settings: Any) -> Any:
    sizes = {"input_h": 4, "input_w": 4, "in_channels": 3, "hidden_size": 32, "num_heads": 2, "external_cond_dim": 5}
    small = {"enc_dim": 32, "enc_depth": 1, "enc_heads": 2, "dec_dim": 32, "dec_depth": 1, "dec_heads": 2}
    model = lively(OasisDiT(**{**sizes, "depth": 1, "max_frames": 4, **settings}), 0.1, weights)
    vae = lively(OasisVAE(3, 8, 8, 2, **small), 0.1, 1)
    return quiet(NextFramePipeline(model, vae, [], 20, torch.eye(ACTIONS, 5).tolist()))


def mar(weights: int = 1, grid: int = 2, depth: int = 1) -> Any:
    sizes = {"dim": 32, "num_heads": 4, "hidden": 48, "buffer_size": 4, "num_classes": 5, "head_width": 16}
    vae = small_kl(4, 2 * grid, (8, 8), groups=4).eval()
    return quiet(MARPipeline(lively(MAR(4, grid, depth=depth, head_depth=1, **sizes), 0.1, weights), vae))


class Enabled:
    """A model without a pipeline of ours, for `mmspec.enable`."""

    target_module = "model"

    def __init__(self) -> None:
        self.model = tiny_glm_image()


@cache
def shipped(name: str) -> Any:
    return quiet(mmspec.Pipeline.from_pretrained(f"mmspec/{name}"))


def cells(pixels: int, rows: int, columns: int) -> list[tuple[int, int]]:
    """Sizes of up to so many rows and columns of pixels."""
    return [(row * pixels, column * pixels) for row in range(1, rows + 1) for column in range(1, columns + 1)]


WEIGHTS = (1, 2, 3)
LLAMAGEN: dict[str, Sequence[Any]] = {
    "weights": WEIGHTS, "vocab_size": (4, 6, 16, 40), "grid": (2, 4, 5), "n_layer": (1, 3), "n_kv_head": (1, 2),
    "rope_base": (100.0,), "condition_vanishes": (False,), "dim": (16, 64),
}  # fmt: skip
LANGUAGE: dict[str, Sequence[Any]] = {
    "codes": (4, 40), "layers": (1, 3), "key_heads": (1, 4), "pixels": (False,), "weights": WEIGHTS
}  # fmt: skip
LATENTS: dict[str, Sequence[Any]] = {
    "weights": WEIGHTS, "grid": (1, 2, 4), "n_layer": (1, 3), "n_kv_head": (1,), "guided": (False,),
}  # fmt: skip
DIFFUSION = {**LATENTS, "steps": (1, 2, 6), "sigma_0": (0.05, 1.0), "head_depth": (2,)}
MIXTURE = {**LATENTS, "components": (1, 8), "least": (0.05, 1.0)}
WORLD: dict[str, Sequence[Any]] = {"weights": WEIGHTS, "frames": (2, 3, 8)}
DENOISING: dict[str, Sequence[Any]] = {"patch": (1,), "depth": (2,), "steps": (1, 4), "context_time": (0.05,)}
CLASSES = ("prompt_embeds", "negative_prompt")
EMOJI = ("red heart", "grinning face", "star", "apple")
FILM: dict[str, Any] = {"prompts": (), "units": "frames", "rows": 3}
CODED, DENOISED = ("num_inference_steps", "cache"), ("temperature", "top_k", "top_p")
MAR_HAS_NONE = (*CLASSES, "top_k", "top_p", "k", "steer_every")
NO_FEATURES, TOKENS = ("prompt_embeds",), {"units": "tokens", "unused": DENOISED}
KINDS: dict[str, Kind] = {
    "classes": Kind(partial(llamagen, False), {**LLAMAGEN, "num_classes": (1, 2)}, prompts=(), unused=CLASSES),
    "captions": Kind(partial(llamagen, True), {**LLAMAGEN, "cls_token_num": (7, 9)}),
    "janus": Kind(janus, {"codes": (4, 40), "grid": (2, 4)}, unused=NO_FEATURES),
    "emu3": Kind(cache(emu3_pipe), sizes=cells(2, 5, 5), unused=NO_FEATURES),
    "anole": Kind(cache(partial(chameleon_pipe, False)), sizes=[(16, 16)], rows=3, unused=NO_FEATURES),
    "lumina": Kind(cache(partial(chameleon_pipe, True)), sizes=cells(4, 3, 3), unused=NO_FEATURES),
    "liquid": Kind(partial(grid_language, "liquid"), LANGUAGE, unused=NO_FEATURES),
    "simplear": Kind(partial(grid_language, "simplear"), LANGUAGE, cells(16, 4, 4), unused=NO_FEATURES),
    "emu3.5": Kind(partial(grid_language, "emu3.5"), LANGUAGE, cells(16, 4, 4), unused=NO_FEATURES),
    "lumina2": Kind(partial(grid_language, "lumina2"), LANGUAGE, [(32, 32), (32, 64)], unused=NO_FEATURES),
    "diffusion": Kind(partial(continuous, head="diffusion"), DIFFUSION, **TOKENS),
    "mixture": Kind(partial(continuous, head="gaussian-mixture", least=0.3, components=3), MIXTURE, **TOKENS),
    "mar": Kind(
        mar, {"weights": WEIGHTS, "grid": (1, 4), "depth": (2,)}, prompts=(), units="tokens", unused=MAR_HAS_NONE
    ),
    "glm-image": Kind(Enabled, prompts=(), units="ids", rows=3),
    "token world": Kind(token_world, {**WORLD, "n_layer": (2,), "n_head": (1,)}, **FILM, unused=CODED),
    "next frame": Kind(next_frame, {**WORLD, **DENOISING}, **FILM, unused=DENOISED),
    "oasis": Kind(oasis, {"weights": WEIGHTS, "max_frames": (2, 3, 8), "depth": (2,)}, **FILM, unused=DENOISED),
    "emoji": Kind(partial(shipped, "emoji"), prompts=EMOJI, rows=2, shipped=True),
    "emoji-continuous": Kind(partial(shipped, "emoji-continuous"), prompts=EMOJI, rows=2, shipped=True, **TOKENS),
    "four-courts": Kind(partial(shipped, "four-courts"), **{**FILM, "rows": 2}, shipped=True, unused=DENOISED),
    "four-courts-tokens": Kind(
        partial(shipped, "four-courts-tokens"), **{**FILM, "rows": 2}, shipped=True, unused=CODED
    ),
}
