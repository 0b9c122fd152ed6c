"""Captions as the transformer reads them: features, padded on the left, and a mask that is False at padding.

There are two kinds of encoders: our small one, and T5 as in the published models for captions. For T5, features of
padding are zero and moved from the right to the left, and captions are cleaned as in training.

A sub-word tokenizer encodes any word, also one that no caption had, and the model would draw something arbitrary. So
our tokenizers list the words of their training captions: the setting `words` of `tokenizer_config.json`, one text with
spaces between words.
"""

import difflib
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.hosts.devices import awake
from mmspec.kits.pictures.cleaning import cleaned
from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.registry.warn import warn


def encode(captions: Sequence[str], tokenizer: Any, encoder: Any, length: int, device: Any) -> tuple[Tensor, Tensor]:
    """Features `[caption, length, width]` and their mask `[caption, length]` bool, by our encoder or transformers'
    `T5EncoderModel`, which runs on `device`.

    Raises:
        ValueError: A caption is empty, too long, or of unknown words only.
    """
    ours = isinstance(encoder, CaptionEncoder)
    said = captions if ours else [cleaned(caption) for caption in captions]
    ids, mask = (t.to(device) for t in tokens_of(said, tokenizer, length))
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
    marks = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}  # they stand for no word
    for i, (caption, row) in enumerate(zip(captions, rows, strict=True)):
        words = [token for token in row if token not in marks]
        if not caption.strip() or not words:
            raise ValueError(f"prompt {i} is empty; say what the picture shows")
        if len(row) > length:
            raise ValueError(f"prompt {i} has {len(row)} tokens and this model reads {length}; shorten it")
        unknown = strange(caption, tokenizer)
        if unknown:
            said = hint(unknown, tokenizer)
            if set(words) == {tokenizer.unk_token_id} or len(unknown) == len(caption.split()):
                raise ValueError(f"this model knows no word of the prompt {caption!r}; {said}")
            warn(f"this model does not know {', '.join(unknown)} in the prompt {caption!r}; {said}")
    padded = tokenizer.pad({"input_ids": rows}, padding="max_length", max_length=length, return_tensors="pt")
    return padded["input_ids"], padded["attention_mask"].bool()


SHOWN = 5
"""Known words that an error shows."""
ALL = "`mmspec generate image --words` lists them all"


def written(captions: Iterable[str]) -> str:
    """The words of captions, in the form of the setting `words`."""
    return " ".join(sorted({word for caption in captions for word in _words(caption)}))


def words_of(tokenizer: Any) -> list[str]:
    """Words of the training captions; where the tokenizer lists none, its tokens that look like words."""
    kept = tokenizer.init_kwargs.get("words")
    if isinstance(kept, str) and kept.split():
        return kept.split()
    by_age = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    known = [word.strip("▁Ġ") for word, _ in by_age if word not in tokenizer.all_special_tokens]
    return [word for word in known if len(word) > 2 and word.isalpha()]


def strange(caption: str, tokenizer: Any) -> list[str]:
    """Words of a caption that no training caption had."""
    if isinstance(tokenizer.init_kwargs.get("words"), str):
        known = set(words_of(tokenizer))
        return [word for word in _words(caption) if word not in known]
    unknown = tokenizer.unk_token_id
    spelled = {word: tokenizer(word, add_special_tokens=False)["input_ids"] for word in caption.split()}
    return [word for word, ids in spelled.items() if unknown in ids]


def hint(words: Sequence[str], tokenizer: Any) -> str:
    """A hint for an error: similar known words, or some known words."""
    known = words_of(tokenizer)
    near = [found for word in words for found in difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)]
    said = f"did you mean {', '.join(near)}?" if near else f"it knows words such as {', '.join(known[:SHOWN])}"
    kept = isinstance(tokenizer.init_kwargs.get("words"), str)
    return f"{said} {len(known)} words are known; {ALL}" if kept else said


def _words(caption: str) -> list[str]:
    return unicodedata.normalize("NFKC", caption).lower().split()
