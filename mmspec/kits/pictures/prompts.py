"""Captions as the transformer reads them: features, padded on the left, and a mask that is False at padding.

There are two kinds of encoders: our small one, and T5 as in the published models for captions. For T5, features of
padding are zero and moved from the right to the left, and captions are lower-cased and stripped (the published code
also removes links and file names from web captions; this does not).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.hosts.devices import awake
from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.kits.pictures.words import hint, strange
from mmspec.registry.warn import warn


def encode(captions: Sequence[str], tokenizer: Any, encoder: Any, length: int, device: Any) -> tuple[Tensor, Tensor]:
    """Features `[caption, length, width]` and their mask `[caption, length]` bool.

    Args:
        captions: At least one.
        tokenizer: The encoder's tokenizer.
        encoder: Ours, or transformers' `T5EncoderModel`.
        length: Conditioning positions of the transformer.
        device: Where the encoder runs.

    Raises:
        ValueError: A caption is empty, too long, or of unknown words only.
    """
    ours = isinstance(encoder, CaptionEncoder)
    ids, mask = (t.to(device) for t in tokens_of(captions if ours else _plain(captions), tokenizer, length))
    if ours:
        with awake(*encoder.modules()):  # torch's attention reads weights of layers that it does not call
            return encoder(ids, mask), mask
    features = encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    return left_padded(features, mask)


def left_padded(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """From features `[batch, n, width]` padded on the right to features padded on the left, with zeros, and their
    mask.
    """
    place = torch.arange(mask.shape[1], device=mask.device)
    source = (place + mask.sum(1, keepdim=True)) % mask.shape[1]
    mask = mask.flip(1)
    return features.gather(1, source[..., None].expand_as(features)) * mask[..., None], mask


def tokens_of(captions: Sequence[str], tokenizer: Any, length: int) -> tuple[Tensor, Tensor]:
    """Ids and mask of captions, `[caption, length]` each, padded on the tokenizer's side.

    Raises:
        ValueError: A caption is empty, too long, or of unknown words only.
    """
    rows = [tokenizer(caption, verbose=False)["input_ids"] for caption in captions]
    for i, (caption, row) in enumerate(zip(captions, rows, strict=True)):
        words = [token for token in row if token not in _marks(tokenizer)]
        if not caption.strip() or not words:
            raise ValueError(f"prompt {i} is empty; say what the picture shows")
        if len(row) > length:
            raise ValueError(f"prompt {i} has {len(row)} tokens and this model reads {length}; shorten it")
        unknown = strange(caption, tokenizer)
        if unknown:
            _refuse_unknown(caption, unknown, tokenizer, every=set(words) == {tokenizer.unk_token_id})
    padded = tokenizer.pad({"input_ids": rows}, padding="max_length", max_length=length, return_tensors="pt")
    return padded["input_ids"], padded["attention_mask"].bool()


def _refuse_unknown(caption: str, unknown: list[str], tokenizer: Any, every: bool) -> None:
    """Refuse a caption of unknown words only; warn of unknown words in others."""
    if every or len(unknown) == len(caption.split()):
        raise ValueError(f"this model knows no word of the prompt {caption!r}; {hint(unknown, tokenizer)}")
    warn(f"this model does not know {', '.join(unknown)} in the prompt {caption!r}; {hint(unknown, tokenizer)}")


def _marks(tokenizer: Any) -> set[int]:
    """Special tokens but the unknown one: they stand for no word."""
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def _plain(captions: Sequence[str]) -> list[str]:
    return [caption.strip().lower() for caption in captions]
