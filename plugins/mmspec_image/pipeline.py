"""`TextToImagePipeline`: captions or classes in, pictures out, in the manner of diffusers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import ImagePipelineOutput
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, T5EncoderModel

from mmspec.api.stored import Stored
from mmspec.core.report import Report
from mmspec.hosts.devices import awake
from mmspec.hosts.loading import load_as, load_tokenizer
from mmspec.kits.pictures.arguments import Sampling
from mmspec.kits.pictures.conditions import refuse_misfits
from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.kits.pictures.pipeline import PicturePipeline
from mmspec_image.models.llamagen import LlamaGenTransformer


@dataclass
class TextToImageOutput(ImagePipelineOutput):
    """The output of a call: `images` as `output_type` names them; all pictures of a prompt stand together."""

    # Counts and times. `report.emitted` counts the codes that were drawn, fewer where a call was stopped.
    report: Report
    codes: Tensor  # `[row, grid, grid]` int64; where a stopped call did not reach, the code above is repeated
    rounds: Tensor  # `[row, grid, grid]` int64: the round that emitted each code; 0 is the prefill, -1: not reached


class TextToImagePipeline(PicturePipeline):
    """Draws pictures as codes in raster order, many codes a pass.

    A subclass for other models names its `target_module` and overrides `encode_prompt`, `decode_units`, `side` and
    `sampling`.

    Args:
        transformer: Gives the distribution of the codes.
        vq: Decodes codes to pixels.
        text_encoder: Features of captions: ours, or `T5EncoderModel` of the published text models; None for classes.
            `from_pretrained` takes a T5's name, too, and the tokenizer from there.
        tokenizer: The text encoder's tokenizer; None for classes.
        guidance_scale: The guidance of a call that names none.
        top_k: The `top_k` of such a call.

    Raises:
        ValueError: The parts do not fit each other; names the numbers that differ.

    Example:
        ```python
        pipe = mmspec.Pipeline.from_pretrained("mmspec/emoji", method="gs-sjd")
        image = pipe("princess skin 4", generator=torch.Generator().manual_seed(0)).images[0]
        ```
    """

    model_cpu_offload_seq = "text_encoder->transformer->vq"
    _optional_components = ["text_encoder", "tokenizer"]  # noqa: RUF012  diffusers' own form
    output = TextToImageOutput

    def __init__(
        self,
        transformer: LlamaGenTransformer,
        vq: LlamaGenVQ,
        text_encoder: CaptionEncoder | PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        guidance_scale: float = 3.0,
        top_k: int = 0,
    ) -> None:
        super().__init__()
        self.register_modules(transformer=transformer, vq=vq, text_encoder=text_encoder, tokenizer=tokenizer)
        self.register_to_config(guidance_scale=guidance_scale, top_k=top_k)
        self.fit()

    def fit(self) -> None:
        model, of = self.transformer.config, self.vq.config
        scales = len(of.encoder_ch_mult) - 1, len(of.decoder_ch_mult) - 1
        refuse_misfits(
            self,
            ("codes: the transformer draws {}, the VQ has {}", model.vocab_size, of.codebook_size),
            ("factors: the VQ's encoder halves {} times, its decoder doubles {} times", *scales),
        )
        with awake(self.vq, self.vq.quantize.embedding):
            self.transformer.entries = self.vq.quantize.entries.detach().to(self.transformer.device)

    @classmethod
    def _parts(
        cls, stored: Stored | None, name: str, dtype: torch.dtype, given: dict[str, Any]
    ) -> tuple[Stored | None, dict[str, Any]]:
        if isinstance(t5 := given.get("text_encoder"), str | Path):
            encoder = load_as(T5EncoderModel, str(t5), dtype, more=True)  # files of T5 have a decoder, too
            given = {"tokenizer": load_tokenizer(str(t5)), **given, "text_encoder": encoder}
        return super()._parts(stored, name, dtype, given)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.config.guidance_scale, top_k=self.config.top_k)

    def decode_units(self, units: Tensor) -> Tensor:
        grid = round(units.shape[1] ** 0.5)
        with awake(self.vq, self.vq.quantize.embedding):  # the codebook is read, not called
            return self.vq.decode(units.unflatten(1, (grid, grid))).float().clamp(-1, 1)

    @property
    def side(self) -> int:
        return self.transformer.config.grid * self.vq.factor
