"""`mmspec train image`: a VQ tokenizer for the emoji, then a caption encoder and a transformer over its codes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from mmspec.kits.pictures.data import SHIFTS, Pictures, caption_tokenizer, moved, pixels
from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.training.loop import LoopOptions, fit
from mmspec.training.work import cached
from mmspec_image.models.llamagen import LlamaGenTransformer


@dataclass(frozen=True)
class ImageRecipe:
    """Sizes and lengths.

    Attributes:
        codes: Entries of the codebook.
        vq_steps: Steps of the tokenizer.
        vq_batch: Pictures of each.
        steps: Steps of the transformer.
        batch: Pictures of each.
        moved: Share of these steps, the first ones, in which pictures are moved by a pixel or two; then they stand
            where they stand, so that the model learns their very codes.
        refining: Further steps, in which some of the codes that the transformer reads are another picture's. A small
            model that has only read true codes knows a picture by its first ones: it does without the caption, and is
            lost as soon as it has drawn a wrong code.
        replaced: Largest share of such codes in a picture; between none and that, another one for every picture.
        words: Tokens of captions.
        length: Tokens of a caption.
        drop: Share of captions that are replaced by the null caption, for guidance.
        seed: Of weights and batches.
    """

    codes: int = 512
    vq_steps: int = 1200
    vq_batch: int = 32
    steps: int = 4500
    batch: int = 16
    moved: float = 0.3
    refining: int = 3300
    replaced: float = 1.0
    words: int = 1024
    length: int = 16
    drop: float = 0.1
    seed: int = 0


class Captioned(nn.Module):
    """Encoder and transformer, trained together.

    Args:
        encoder: Features of captions.
        transformer: Codes after them.
    """

    def __init__(self, encoder: CaptionEncoder, transformer: LlamaGenTransformer) -> None:
        super().__init__()
        self.encoder, self.transformer = encoder, transformer

    def forward(self, ids: Tensor, mask: Tensor, codes: Tensor, dropped: Tensor) -> Tensor:
        """Logits `[batch, n, vocab]` of codes `[batch, n]`; rows `dropped [batch]` have the null caption."""
        null = self.transformer.cls_embedding.null(len(ids))
        features = torch.where(dropped[:, None, None], null, self.encoder(ids, mask).type_as(null))
        return self.transformer(features, codes, mask | dropped[:, None])


def train_vq(
    pictures: Pictures, recipe: ImageRecipe, work: Path, device: str, say: Callable[[str], None]
) -> LlamaGenVQ:
    """The tokenizer: absolute and squared error of pixels, and the codebook's loss."""
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
        g = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        chosen = torch.randint(len(images), (recipe.vq_batch,), generator=g)
        shift = SHIFTS[int(torch.randint(len(SHIFTS), (), generator=g))]
        return pixels(moved(images[chosen.to(device)], shift))

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        made, quantised = model(batch)
        return (made.float() - batch).abs().mean() + (made.float() - batch).square().mean() + quantised.loss.float()

    options = LoopOptions(recipe.vq_steps, 1e-3, weight_decay=0.0)
    fit(vq, batch_at, loss_of, options, work / "vq", say)
    return vq


@torch.no_grad()
def encode_all(vq: LlamaGenVQ, pictures: Pictures, work: Path, device: str) -> Tensor:
    """Codes of every picture in every place: `[shift, picture, cell]` int16, kept in `work`."""

    def made() -> Tensor:
        vq.eval()
        shifted = []
        for shift in SHIFTS:
            parts = moved(pictures.images, shift).split(256)
            shifted.append(torch.cat([vq.encode(pixels(part.to(device))).codes.flatten(1).cpu() for part in parts]))
        return torch.stack(shifted).to(torch.int16)

    return cached(work / "codes.pt", (*vq.state_dict().values(), pictures.images), made)


def train_transformer(
    pictures: Pictures,
    codes: Tensor,
    tokenizer: PreTrainedTokenizerFast,
    recipe: ImageRecipe,
    work: Path,
    device: str,
    say: Callable[[str], None],
) -> Captioned:
    """Encoder and transformer: next-code cross-entropy, of true codes after true ones, then after some wrong ones."""
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
    model = _scaled(Captioned(encoder, transformer)).to(device)
    words = tokenizer(pictures.captions, padding="max_length", truncation=True, return_tensors="pt")
    seen = (~pictures.held_out).nonzero()[:, 0]

    def drawn(g: torch.Generator, moving: bool) -> tuple[Tensor, ...]:
        chosen = seen[torch.randint(len(seen), (recipe.batch,), generator=g)]
        shift = torch.randint(len(SHIFTS), (recipe.batch,), generator=g) * moving
        dropped = torch.rand(recipe.batch, generator=g) < recipe.drop
        ids, mask = words["input_ids"][chosen], words["attention_mask"][chosen].bool()
        return ids, mask, codes[shift, chosen].long(), dropped

    def batch_at(step: int) -> tuple[Tensor, ...]:
        g = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        ids, mask, true, dropped = drawn(g, step < recipe.moved * recipe.steps)
        return tuple(t.to(device) for t in (ids, mask, true, dropped, true))

    def refining_at(step: int) -> tuple[Tensor, ...]:
        g = torch.Generator().manual_seed((recipe.seed + 1) * 1_000_003 - 1 - step)
        ids, mask, true, dropped = drawn(g, False)
        wrong = torch.rand(true.shape, generator=g) < recipe.replaced * torch.rand(len(true), 1, generator=g)
        other = codes[0, seen[torch.randint(len(seen), (recipe.batch,), generator=g)]].long()
        return tuple(t.to(device) for t in (ids, mask, torch.where(wrong, other, true), dropped, true))

    fit(model, batch_at, next_code, LoopOptions(recipe.steps, 1e-3, warmup=200), work / "transformer", say)
    fit(model, refining_at, next_code, LoopOptions(recipe.refining, 7e-4, warmup=100), work / "refined", say)
    return model


def next_code(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Cross-entropy of every code, in nats: the model's arguments, and last the codes that are true."""
    *given, codes = batch
    return F.cross_entropy(model(*given).flatten(0, 1).float(), codes.flatten())


def train(
    pictures: Pictures, recipe: ImageRecipe, work: Path, device: str, say: Callable[[str], None]
) -> tuple[LlamaGenVQ, Captioned, PreTrainedTokenizerFast]:
    """Everything, resuming where it stopped."""
    work.mkdir(parents=True, exist_ok=True)
    step: Callable[[str], Callable[[str], None]] = lambda what: partial(_said, say, what)  # noqa: E731
    vq = train_vq(pictures, recipe, work, device, step("vq"))
    codes = encode_all(vq, pictures, work, device)
    tokenizer = caption_tokenizer(pictures.captions, recipe.words, recipe.length)
    return vq, train_transformer(pictures, codes, tokenizer, recipe, work, device, step("transformer")), tokenizer


def _said(say: Callable[[str], None], what: str, line: str) -> None:
    say(f"{what}: {line}")


def _scaled(model: Captioned) -> Captioned:
    """Small weights to begin with, smaller where a residual is added to."""
    for name, weights in model.transformer.named_parameters():
        if weights.dim() > 1:
            depth = (2 * len(model.transformer.layers)) ** 0.5 if name.endswith(("wo.weight", "w2.weight")) else 1.0
            nn.init.normal_(weights, std=0.02 / depth)
    return model
