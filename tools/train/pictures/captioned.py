"""What recipes of models that draw captions share: batches of pictures, captions with units, and how it went."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Generator, Tensor, nn
from transformers import PreTrainedTokenizerFast

from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.kits.pictures.prompts import written
from tools.train.pictures.data import Pictures, pixels

SHIFTS = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (2, 2), (-2, -2), (2, -2))
"""Pixels by which a picture is moved for training: rows, columns."""
BATCH = 64
"""Pictures at a time where nothing is learned."""


def generator_of(seed: int, step: int) -> Generator:
    """The random numbers of one training step."""
    return torch.Generator().manual_seed(seed * 1_000_003 + step)


def moved(images: Tensor, shift: tuple[int, int]) -> Tensor:
    """Pictures moved by whole pixels; new pixels repeat the edge."""
    rows, columns = shift
    side = images.shape[-1]
    at = torch.arange(side)
    return images[..., (at - rows).clamp(0, side - 1)[:, None], (at - columns).clamp(0, side - 1)]


def moved_batch(images: Tensor, size: int, g: Generator) -> Tensor:
    """Some of the pictures `images [n, 3, side, side]` (uint8), all moved alike: `[size, 3, side, side]` in [-1, 1]."""
    chosen = torch.randint(len(images), (size,), generator=g)
    shift = SHIFTS[int(torch.randint(len(SHIFTS), (), generator=g))]
    return pixels(moved(images[chosen.to(images.device)], shift))


def encoded_everywhere(pictures: Pictures, encode: Callable[[Tensor], Tensor], device: str) -> Tensor:
    """Units of every picture under every shift, `[shift, picture, cell, *unit]`; `encode` takes pixels on `device`."""
    places = []
    for shift in SHIFTS:
        parts = moved(pictures.images, shift).split(256)
        places.append(torch.cat([encode(pixels(part.to(device))).cpu() for part in parts]))
    return torch.stack(places)


class CaptionedUnits:
    """Batches of the pictures that are not held out, as units, with their captions.

    Args:
        pictures: All pictures.
        units: Their units, `[shift, picture, cell, *unit]`.
        tokenizer: The captions' tokenizer.
        batch: Pictures of a batch.
        drop: Share of captions that are replaced by the null caption.
    """

    def __init__(
        self, pictures: Pictures, units: Tensor, tokenizer: PreTrainedTokenizerFast, batch: int, drop: float
    ) -> None:
        self.ids, self.mask = tokens_of_captions(pictures.captions, tokenizer)
        self.seen = (~pictures.held_out).nonzero()[:, 0]
        self.units, self.batch, self.drop = units, batch, drop

    def draw(self, g: Generator, moving: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Caption tokens, their mask, units, and which captions are dropped; `moving`: each by a shift of its own."""
        chosen = self._some(g)
        shift = torch.randint(len(SHIFTS), (self.batch,), generator=g) * moving
        dropped = torch.rand(self.batch, generator=g) < self.drop
        return self.ids[chosen], self.mask[chosen], self.units[shift, chosen], dropped

    def others(self, g: Generator) -> Tensor:
        """Units of a batch of any pictures, not moved: `[batch, cell, *unit]`."""
        return self.units[0, self._some(g)]

    def _some(self, g: Generator) -> Tensor:
        return self.seen[torch.randint(len(self.seen), (self.batch,), generator=g)]


def tokens_of_captions(captions: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> tuple[Tensor, Tensor]:
    """Ids and mask (bool) of captions, `[caption, length]` each; long ones are cut off."""
    words = tokenizer(list(captions), padding="max_length", truncation=True, return_tensors="pt")
    return words["input_ids"], words["attention_mask"].bool()


def held_out(
    pictures: Pictures, tokenizer: PreTrainedTokenizerFast, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Held-out pictures `[n, 3, side, side]` in [-1, 1], and ids and mask of their captions."""
    kept = pictures.held_out.nonzero()[:, 0]
    ids, mask = tokens_of_captions([pictures.captions[i] for i in kept], tokenizer)
    return pixels(pictures.images[kept].to(device)), ids.to(device), mask.to(device)


def wrong_units(true: Tensor, most: float, g: Generator) -> Tensor:
    """Which units are replaced, `[batch, cell]` bool: of every picture another share, between none and `most`."""
    return torch.rand(true.shape[:2], generator=g) < most * torch.rand(len(true), 1, generator=g)


def caption_features(
    encoder: CaptionEncoder, transformer: Any, ids: Tensor, mask: Tensor, dropped: Tensor
) -> tuple[Tensor, Tensor]:
    """Features of captions and their mask; rows `dropped [batch]` have the null caption, all of which is seen."""
    null = transformer.cls_embedding.null(len(ids))
    features = torch.where(dropped[:, None, None], null, encoder(ids, mask).type_as(null))
    return features, mask | dropped[:, None]


def start_small(transformer: Any, left_out: tuple[str, ...] = ()) -> None:
    """Draw small first weights, smaller before residual sums; names that begin with `left_out` stay as they are."""
    for name, weights in transformer.named_parameters():
        if weights.dim() > 1 and not name.startswith(left_out):
            depth = (2 * len(transformer.layers)) ** 0.5 if name.endswith(("wo.weight", "w2.weight")) else 1.0
            nn.init.normal_(weights, std=0.02 / depth)


def batched(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The rows of several tensors, `BATCH` at a time."""
    return zip(*(tensor.split(BATCH) for tensor in tensors), strict=True)


def mean_loss(loss_of: Callable[..., Tensor], *tensors: Tensor) -> float:
    """Mean over rows of a loss that is computed batch by batch; `loss_of` takes a batch of every tensor."""
    total = sum(float(loss_of(*batch)) * len(batch[0]) for batch in batched(*tensors))
    return round(total / len(tensors[0]), 4)


def psnr(pictures: Tensor, true: Tensor) -> float:
    """Peak signal-to-noise ratio in dB, of pixels in [-1, 1]."""
    return round(float(10 * (4 / (pictures - true).square().mean()).log10()), 2)


def caption_tokenizer(captions: list[str], vocab: int, length: int) -> PreTrainedTokenizerFast:
    """A lower-case BPE over captions, padded on the left; lists their words (see `mmspec.kits.pictures.prompts`)."""
    bpe = Tokenizer(models.BPE(unk_token="<unk>"))
    bpe.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    bpe.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=["<pad>", "<unk>"], show_progress=False)
    bpe.train_from_iterator(captions, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token="<pad>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=length,
        words=written(captions),
    )
