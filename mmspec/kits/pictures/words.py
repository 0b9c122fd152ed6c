"""The words of a model's training captions, and what to say about other words.

A sub-word tokenizer encodes any word, also one that no caption had, and the model would draw something arbitrary. So
our tokenizers list their words: the setting `words` of `tokenizer_config.json`, one text with spaces between words.
"""

import difflib
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

SHOWN = 5
"""Known words that an error shows."""
ALL = "`mmspec generate image --words` lists them all"


def written(captions: Iterable[str]) -> str:
    """The words of captions, in the form of the setting `words`."""
    return " ".join(sorted({word for caption in captions for word in _plain(caption)}))


def words_of(tokenizer: Any) -> list[str]:
    """Words of the training captions; where the tokenizer lists none, those of its tokens that look like words."""
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
        return [word for word in _plain(caption) if word not in known]
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


def _plain(caption: str) -> list[str]:
    return unicodedata.normalize("NFKC", caption).lower().split()
