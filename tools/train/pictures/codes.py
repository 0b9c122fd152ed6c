"""Recipe `image`: a VQ tokenizer for the emoji, then a caption encoder and a transformer over its codes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.training.loop import LoopOptions, fit
from mmspec.training.work import cached
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.pipeline import TextToImagePipeline
from tools.train.pictures import captioned as kit
from tools.train.pictures import ship
from tools.train.pictures.captioned import caption_tokenizer
from tools.train.pictures.data import Pictures


@dataclass(frozen=True)
class ImageRecipe:
    """Sizes and lengths."""

    codes: int = 512  # entries of the codebook
    vq_steps: int = 1200  # steps of the tokenizer
    vq_batch: int = 32  # pictures per step of the tokenizer
    steps: int = 4500  # steps of the transformer
    batch: int = 16  # pictures per step of the transformer
    # Share of these steps, the first ones, in which pictures are moved by a pixel or two; afterwards they are not
    # moved, so that the model learns their own codes
    moved: float = 0.3
    # Further steps, in which some of the codes that the transformer reads are another picture's. A small model that has
    # read true codes only recognises a picture by its first codes: it ignores the caption, and fails after its first
    # wrong code.
    refining: int = 3300
    # Largest share of such codes in a picture; every picture has its own share between 0 and this
    replaced: float = 1.0
    words: int = 1024  # size of the captions' vocabulary
    length: int = 16  # tokens of a caption, padding included
    drop: float = 0.1  # share of captions that are replaced by the null caption, for guidance
    seed: int = 0  # seed of weights and batches


class Captioned(nn.Module):
    """Encoder and transformer, trained together."""

    def __init__(self, encoder: CaptionEncoder, transformer: LlamaGenTransformer) -> None:
        super().__init__()
        self.encoder, self.transformer = encoder, transformer

    def forward(self, ids: Tensor, mask: Tensor, codes: Tensor, dropped: Tensor) -> Tensor:
        """Logits `[batch, n, vocab]` of codes `[batch, n]`; rows `dropped [batch]` have the null caption."""
        features, seen = kit.caption_features(self.encoder, self.transformer, ids, mask, dropped)
        return self.transformer(features, codes, seen)


def train_vq(
    pictures: Pictures, recipe: ImageRecipe, work: Path, device: str, say: Callable[[str], None]
) -> LlamaGenVQ:
    """Train the tokenizer: absolute and squared error of pixels, and the codebook's loss."""
    torch.manual_seed(recipe.seed)
    vq = LlamaGenVQ(
        recipe.codes,
        ch=32,
        encoder_ch_mult=(1, 2, 4),
        decoder_ch_mult=(1, 2, 2),
        z_channels=64,
        num_res_blocks=1,
        local=True,
    ).to(device)
    images = pictures.images[~pictures.held_out].to(device)

    def batch_at(step: int) -> Tensor:
        return kit.moved_batch(images, recipe.vq_batch, kit.generator_of(recipe.seed, step))

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        decoded, quantised = model(batch)
        error = decoded.float() - batch
        return error.abs().mean() + error.square().mean() + quantised.loss.float()

    options = LoopOptions(recipe.vq_steps, 1e-3, weight_decay=0.0)
    fit(vq, batch_at, loss_of, options, work / "vq", say)
    return vq


@torch.no_grad()
def encode_all(vq: LlamaGenVQ, pictures: Pictures, work: Path, device: str) -> Tensor:
    """Codes of every picture in every place: `[shift, picture, cell]` int16, kept in `work`."""

    def encoded() -> Tensor:
        vq.eval()
        codes = kit.encoded_everywhere(pictures, lambda images: vq.encode(images).codes.flatten(1), device)
        return codes.to(torch.int16)

    return cached(work / "codes.pt", (*vq.state_dict().values(), pictures.images), encoded)


def train_transformer(
    pictures: Pictures,
    codes: Tensor,
    tokenizer: PreTrainedTokenizerFast,
    recipe: ImageRecipe,
    work: Path,
    device: str,
    say: Callable[[str], None],
) -> Captioned:
    """Train encoder and transformer: cross-entropy of true codes, after true codes, then after some wrong ones."""
    torch.manual_seed(recipe.seed + 1)
    encoder = CaptionEncoder(len(tokenizer), recipe.length)
    transformer = LlamaGenTransformer(
        vocab_size=recipe.codes,
        grid=int(codes.shape[-1] ** 0.5),
        dim=256,
        n_layer=6,
        n_head=4,
        multiple_of=64,
        model_type="t2i",
        caption_dim=encoder.config.dim,
        cls_token_num=recipe.length,
        condition_vanishes=False,
    )
    kit.start_small(transformer)
    model = Captioned(encoder, transformer).to(device)
    units = kit.CaptionedUnits(pictures, codes, tokenizer, recipe.batch, recipe.drop)

    def batch_at(step: int) -> tuple[Tensor, ...]:
        g = kit.generator_of(recipe.seed, step)
        ids, mask, true, dropped = units.draw(g, step < recipe.moved * recipe.steps)
        return tuple(t.to(device) for t in (ids, mask, true.long(), dropped, true.long()))

    def refining_at(step: int) -> tuple[Tensor, ...]:
        g = kit.generator_of(recipe.seed + 1, -1 - step)
        ids, mask, true, dropped = units.draw(g, False)
        read = torch.where(kit.wrong_units(true, recipe.replaced, g), units.others(g), true)
        return tuple(t.to(device) for t in (ids, mask, read.long(), dropped, true.long()))

    fit(model, batch_at, next_code, LoopOptions(recipe.steps, 1e-3, warmup=200), work / "transformer", say)
    fit(model, refining_at, next_code, LoopOptions(recipe.refining, 7e-4, warmup=100), work / "refined", say)
    return model


def next_code(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Cross-entropy of every code, in nats; a batch has the model's arguments, and last the codes that are true."""
    *arguments, codes = batch
    return F.cross_entropy(model(*arguments).flatten(0, 1).float(), codes.flatten())


def train(
    pictures: Pictures, recipe: ImageRecipe, work: Path, device: str, say: Callable[[str], None]
) -> tuple[LlamaGenVQ, Captioned, PreTrainedTokenizerFast]:
    """Train all parts, resuming where training stopped."""
    work.mkdir(parents=True, exist_ok=True)
    vq = train_vq(pictures, recipe, work, device, lambda line: say(f"vq: {line}"))
    codes = encode_all(vq, pictures, work, device)
    tokenizer = caption_tokenizer(pictures.captions, recipe.words, recipe.length)
    say_more: Callable[[str], None] = lambda line: say(f"transformer: {line}")  # noqa: E731
    return vq, train_transformer(pictures, codes, tokenizer, recipe, work, device, say_more), tokenizer


@torch.no_grad()
def facts_of(
    vq: LlamaGenVQ, model: Captioned, tokenizer: PreTrainedTokenizerFast, pictures: Pictures, recipe: ImageRecipe
) -> dict[str, Any]:
    """What the card says: parameters, recipe, and numbers of held-out pictures.

    `held_out_nats_per_code` is the cross-entropy after the picture's caption, and after the null caption;
    `reconstruction_psnr_db` is the tokenizer's.
    """
    vq.eval(), model.eval()
    images, ids, mask = kit.held_out(pictures, tokenizer, next(model.parameters()).device)
    codes = torch.cat([vq.encode(part).codes.flatten(1) for (part,) in kit.batched(images)])
    square = 2 * (model.transformer.config.grid,)
    decoded = torch.cat([vq.decode(part.unflatten(1, square)) for (part,) in kit.batched(codes)])

    def nats(ids: Tensor, mask: Tensor, codes: Tensor, dropped: bool) -> Tensor:
        without = torch.full((len(ids),), dropped, device=ids.device)
        return next_code(model, (ids, mask, codes, without, codes))

    return ship.facts(
        recipe,
        vq,
        model,
        held_out_nats_per_code={
            "with its caption": kit.mean_loss(partial(nats, dropped=False), ids, mask, codes),
            "without a caption": kit.mean_loss(partial(nats, dropped=True), ids, mask, codes),
        },
        reconstruction_psnr_db=kit.psnr(decoded, images),
        codes_used=len(codes.unique()),
    )


def train_and_ship(
    pictures: Pictures, recipe: ImageRecipe, out: Path, work: Path, device: str, say: Callable[[str], None]
) -> None:
    """As `tools.train.pictures.ship.train_and_ship`; writes `<out>/emoji`."""
    parts: dict[str, Any] = {"train": train, "facts_of": facts_of, "pipeline": TextToImagePipeline}
    ship.train_and_ship("emoji", pictures, recipe, out, work, device, say, **parts)
