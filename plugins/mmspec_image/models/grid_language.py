"""Language models that draw pictures as one grid of codes, published with code of their own: a table, and their bodies.

Their code is not run. The body of each is one of transformers; what is left of the rest is a row of `GRIDS`: how a
prompt asks for a picture, which ids are codes, and which ids stand between rows and behind them. A model's
configuration says which row it is and where its codes begin (`grid_language`).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn
from transformers import GemmaForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from mmspec.kits.pictures.arguments import Sampling
from mmspec_image.models.chameleon import ChameleonForImages
from mmspec_image.sampling import AUTHORS


@dataclass(frozen=True)
class Grid:
    """The layout that a family of models writes, and its authors' prompt. In prompts, `{rows}` and `{columns}` are
    counts of codes, `{height}` and `{width}` pixels, `{high}` and `{wide}` words for the size.
    """

    prompt: str
    null: str  # what the authors lead away from, where a call does not say
    factor: int  # pixels of a code, per side
    size: tuple[int, int]  # rows and columns of a picture whose size a call does not name
    sampling: Sampling  # how the authors draw
    needed: tuple[str, ...]  # words of the tokenizer without which it is another model's
    codes: int | str  # how many codes there are, behind all words; or what the names of their words begin with
    first: int | None = None  # the first code's id; None: it follows the words, or its word says it
    row_end: str | None = None  # the word behind every row but the last
    ends: tuple[str, ...] = ()  # words behind the picture; the first takes the place of a row end, if there are any
    sizes: bool = False  # whether a call may name a size
    multiple: int = 1  # of codes per side
    null_begins: bool = True  # whether the begin of a text, where the tokenizer puts one, precedes `null`, too
    away: str | None = None  # how a negative prompt is worded; None: as a prompt


LUMINA_SIZES = 8800  # a size of n grids is Lumina's word `<reserved0N>` with N = 8800 + n
GRIDS = {
    "liquid": Grid(
        prompt="{text} Generate an image based on this description.<boi>",
        null="<unconditional><boi>",
        factor=16,
        size=(32, 32),
        sampling=AUTHORS["Liquid"],
        needed=("<boi>",),
        codes=8192,
    ),
    "simplear": Grid(
        prompt="<|t2i|>A highly realistic image of {text}<|soi|>",
        null="<|t2i|>An image of aerial view, overexposed, low quality, deformation, a poor composition, bad hands, "
        "bad teeth, bad eyes, bad limbs, distortion<|soi|>",
        factor=16,
        size=(64, 64),
        sampling=AUTHORS["SimpleAR"],
        needed=("<|t2i|>", "<|soi|>"),
        codes=64000,
        sizes=True,
        away="<|t2i|>An image of {text}<|soi|>",
    ),
    "emu3.5": Grid(
        prompt="<|extra_203|>You are a helpful assistant for t2i task. USER: {text} ASSISTANT: <|extra_100|>"
        "<|image start|>{rows}*{columns}<|image token|>",
        null="<|extra_203|>You are a helpful assistant. USER:  ASSISTANT: <|extra_100|>"
        "<|image start|>{rows}*{columns}<|image token|>",
        factor=16,
        size=(55, 73),
        sampling=AUTHORS["Emu3.5"],
        needed=("<|image start|>", "<|image end|>", "<|image token|>", "<|extra_200|>", "<|extra_100|>"),
        codes="<|visual token",
        row_end="<|extra_200|>",
        ends=("<|image end|>",),
        sizes=True,
    ),
    "lumina2": Grid(
        prompt="Generate an image of {width}x{height} according to the following prompt:\n{text}<reserved08706>"
        "<racm3:break>{high}{wide}",
        null="<racm3:break>{high}{wide}",
        factor=8,
        size=(96, 96),
        sampling=AUTHORS["Lumina-mGPT 2.0"],
        needed=("<racm3:break>", "<eoss>", "<reserved08706>", "<reserved08799>", "<reserved08801>"),
        codes=16384,
        first=155000,
        row_end="<reserved08799>",
        ends=("<reserved08799>", "<eoss>"),
        sizes=True,
        multiple=4,
        null_begins=False,
    ),
}


class LiquidForImages(GemmaForCausalLM):
    """Liquid (arXiv 2412.04332): a Gemma, behind whose words stand the codes of Chameleon's VQ."""


class SimpleARForImages(Qwen2ForCausalLM):
    """SimpleAR (arXiv 2504.11455): a Qwen2, behind whose words stand the codes of a Cosmos tokenizer."""


class Emu35ForImages(Qwen3ForCausalLM):
    """Emu3.5 (arXiv 2510.26583): a Qwen3 by its layers, with words for the codes of an IBQ tokenizer."""


class Lumina2ForImages(ChameleonForImages):
    """Lumina-mGPT 2.0 (arXiv 2507.17801): a Chameleon without a VQ, with the codes of a MoVQGAN."""

    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = []

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.vqmodel = nn.Identity()


BODIES: dict[str, type[PreTrainedModel]] = {
    "liquid": LiquidForImages,
    "simplear": SimpleARForImages,
    "emu3.5": Emu35ForImages,
    "lumina2": Lumina2ForImages,
}
"""The class of each row of `GRIDS`."""
