"""Captions as the transformer reads them: features, padded on the left, and a mask that is False at padding.

Of T5, as in the published models for captions, features of padding are zero and moved from the right to the left, and
captions are cleaned by the rules of DeepFloyd IF's training, which PixArt and LlamaGen took over; of the library ftfy,
which the published code calls, `cleaned` has composed characters (NFC) alone. Our own small tokenizers list the words
of their training captions (`words` of `tokenizer_config.json`, one text with spaces): a sub-word tokenizer encodes any
word, also one that no caption had, and the model would draw something arbitrary.
"""

import difflib
import html
import re
from collections.abc import Iterable, Sequence
from html.parser import HTMLParser
from typing import Any
from unicodedata import category, normalize
from urllib.parse import unquote_plus

import torch
from torch import Tensor

from mmspec.hosts.devices import awake
from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.registry.warn import warn


def encode(captions: Sequence[str], tokenizer: Any, encoder: Any, length: int, device: Any) -> tuple[Tensor, Tensor]:
    """Features `[caption, length, width]` and their mask `[caption, length]` bool, by our encoder or transformers'
    `T5EncoderModel`, which runs on `device`; refuses a caption that is empty, too long, or of unknown words only.
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
    """Ids and mask of captions, `[caption, length]` each, padded on the tokenizer's side."""
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


SHOWN = 5  # known words that an error shows
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
    return normalize("NFKC", caption).lower().split()


LINKS = r"\b(?:(?:https?|www):(?:/{1,3}|[a-z0-9%])|[a-z0-9.-]+\.(?:com?|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@))"
DASHES = "".join(filter(lambda sign: category(sign) == "Pd", map(chr, range(2**16))))
ENDING = "(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)"
SIGNS = (
    (r"@\w+\b|[\u31c0-\u9fff]+", ""),  # names of users; Chinese characters
    (f"[{DASHES}]+", "-"),
    (r"[`\u00b4«»“”¨]", '"'),
    (r"[\u2018\u2019]", "'"),
    (r"&(?:quot;?|amp)", ""),
    (r"(?:\d{1,3}\.){3}\d{1,3}", " "),  # addresses of machines
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),
    (r"#(?:\d{1,3}|\d{5,})\b|\b\d{6,}\b", ""),
    (rf"\S+\.{ENDING}", ""),  # names of files
    (r"['\"]{2,}", '"'),
    (r"\.\.+", " "),
    (r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+", " "),
    (r"\s+\.\s+", " "),
)
"""Patterns, and what stands in their place, in this order."""
WORDS = (
    (r"\b[a-z]{1,3}\d{3,15}\b|\b[a-z]+\d+[a-z]+\b|\b\d+[a-z]+\d+\b", ""),  # numbers of articles
    (r"(?:worldwide\s+)?(?:free\s+)?shipping", ""),
    (r"(?:free\s)?download(?:\sfree)?", ""),
    (r"\bclick\s(?:for|on)\s\w+", ""),
    (rf"\b{ENDING}(?:\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-z]+\d+[a-z]+\d+[a-z\d]*\b", " "),
    (r"\b\d+\.?\d*[x\u0445\u00d7]\d+\.?\d*\b", ""),  # sizes
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
    (r"^['\"](.+)['\"]$", r"\1"),
    (r"^[-'_,:;]", ""),
    (r"[-+'_,:]$", ""),
    (r"^\.\S+$", ""),
)
"""The same, after names that are written like those of files are words."""


def cleaned(caption: str) -> str:
    """A caption as in training: in small letters, without links, file names and marks; "" if nothing is left.

    Example:
        >>> cleaned("A “red” fox -- fox.jpg, https://foxes.com (1920x1080)")
        'a "red" fox -'
    """
    return _once(_once(caption))  # as the authors do: a rule may leave work for one before it


def _once(caption: str) -> str:
    caption = unquote_plus(caption).strip().lower().replace("<person>", "person")
    caption = _replaced(_shown(re.sub(LINKS, "", caption)), SIGNS)
    if len(re.findall("[-_]", caption)) > 3:
        caption = re.sub("[-_]", " ", caption)
    return _replaced(html.unescape(html.unescape(normalize("NFC", caption))).strip(), WORDS).strip()


def _replaced(text: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, instead in rules:
        text = re.sub(pattern, instead, text)
    return text


def _shown(marked_up: str) -> str:
    """The text of HTML."""
    parts = list[str]()
    parser = HTMLParser()
    parser.handle_data = parts.append  # type: ignore[method-assign, assignment]
    parser.feed(marked_up)
    parser.close()
    return "".join(parts)
