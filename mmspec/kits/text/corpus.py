"""Files of texts, or of their ids, that drafters count or search; and the most frequent ids in them."""

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from torch import Tensor

from mmspec.hosts.loading import load_tokenizer

PIECE = 2**20  # characters of a text that are tokenized at a time, to the end of a line


def read_corpus(source: Any, tokenizer: Any) -> Any:
    """The ids of a corpus: the ids themselves, a file of ids (`.json`, `.safetensors`), or a text file, for which there
    is a tokenizer, live or a model's name.
    """
    if not isinstance(source, (str, Path)):
        return source
    pieces = list(read_pieces(Path(source), tokenizer))
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, np.int32), *pieces])


def read_pieces(path: Path, tokenizer: Any) -> Iterator[Any]:
    """The ids of a file. A text is tokenized in pieces, so that a large one fits; a file of ids is read at once."""
    if not path.is_file():
        raise ValueError(f"no corpus at {path}; give a UTF-8 text file, or a file of ids (.json, .safetensors)")
    is_ids = path.suffix in (".json", ".safetensors")
    if tokenizer is None and not is_ids:
        raise ValueError(f"the corpus {path} is text; name the tokenizer that makes ids of it (tokenizer=…)")
    if isinstance(tokenizer, str) and not is_ids:
        tokenizer = load_tokenizer(tokenizer)
    try:
        if path.suffix == ".json":
            yield json.loads(path.read_text(encoding="utf-8"))
        elif is_ids:
            yield _only(load_file(path))
        else:
            yield from _tokenized(path, tokenizer)
    except Exception as error:
        raise ValueError(f"the corpus {path} cannot be read: {error}") from error


def _tokenized(path: Path, tokenizer: Any) -> Iterator[np.ndarray]:
    """The ids of a text file, which is read and tokenized in pieces of whole lines."""
    with path.open(encoding="utf-8", newline="") as file:
        while lines := file.readlines(PIECE):
            ids = tokenizer("".join(lines), add_special_tokens=False, verbose=False)["input_ids"]
            yield np.asarray(ids, np.int32)


def _only(tensors: dict[str, Any]) -> Any:
    if len(tensors) != 1:
        raise ValueError(f"one tensor of ids is wanted, it has {sorted(tensors)}")
    return next(iter(tensors.values()))


def documents_of(ids: Any) -> list[np.ndarray]:
    """The documents of a corpus, ids or a list of lists of ids, as arrays of int32."""
    nested = isinstance(ids, (list, tuple)) and any(isinstance(document, (list, tuple)) for document in ids)
    documents = [np.asarray(document) for document in ids] if nested else [np.asarray(ids)]
    for document in documents:
        if document.ndim != 1 or (len(document) and document.dtype.kind not in "iu"):
            raise ValueError("a corpus is a list of token ids, or a list of such lists")
        if len(document) and not 0 <= int(document.min()) <= int(document.max()) < 2**31:
            raise ValueError(f"token ids are 0 … 2**31 - 1, the corpus has {document.min()} … {document.max()}")
    if not any(len(document) for document in documents):
        raise ValueError("the corpus is empty")
    return [document.astype(np.int32) for document in documents]


def refuse_other_ids(largest: int, vocab: int) -> None:
    """Refuse a corpus that was made with another tokenizer than the target's."""
    if largest >= vocab:
        raise ValueError(
            f"the corpus has token id {largest} and the target's are 0 … {vocab - 1}; "
            "it was made with another tokenizer"
        )


TOGETHER = 256  # texts that are tokenized at a time


def kept_ids(counts: Tensor, special: frozenset[int], keep: int, possible: Tensor | None = None) -> list[int]:
    """V_trim, ascending: of the `possible [vocab]` ids (default: all) the special ones, then the most frequent by
    `counts [vocab]`, of equals the smaller: `keep` in all.
    """
    ranked = counts.clone()
    ranked[sorted(special)] = counts.max() + 1
    if possible is not None:
        ranked[~possible] = -1
    order = ranked.sort(descending=True, stable=True).indices[:keep]
    return sorted(order[ranked[order] >= 0].tolist())


def counted(source: Any, tokenizer: Any, vocab: int) -> np.ndarray:
    """The counts `[vocab]` int64 of the ids of a corpus: a text file, a file of ids (`.json`, `.safetensors`), or an
    iterable of texts, of ids, or of lists of ids.
    """
    counts = np.zeros(vocab, np.int64)
    for ids in _pieces(source, tokenizer):
        if ids.dtype.kind not in "iu":
            raise ValueError(f"a corpus is texts, ids, or lists of ids; got numbers of the type {ids.dtype}")
        if not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
            raise ValueError(
                f"the corpus has token ids {ids.min()} … {ids.max()} and the target's are 0 … {vocab - 1}; "
                "it was made with another tokenizer"
            )
        counts += np.bincount(ids, minlength=vocab)
    if not counts.any():
        raise ValueError("the corpus is empty")
    return counts


def _pieces(source: Any, tokenizer: Any) -> Iterator[np.ndarray]:
    """Arrays of ids, none of them empty."""
    if isinstance(source, (str, Path)):
        for piece in read_pieces(Path(source), tokenizer):
            yield from _flat(piece)
        return
    if not isinstance(source, Iterable):
        raise ValueError(f"a corpus is a file, texts, ids, or lists of ids; got {type(source).__name__}")
    items = iter(source)
    first = next(items, ())
    if isinstance(first, str):
        if tokenizer is None:
            raise ValueError("the corpus is texts; name the tokenizer that makes ids of them (tokenizer=…)")
        yield from _of_texts(chain([first], items), tokenizer)
    else:
        yield from _flat(chain([first], items))


def _of_texts(texts: Iterator[str], tokenizer: Any) -> Iterator[np.ndarray]:
    while some := [text for _, text in zip(range(TOGETHER), texts, strict=False)]:
        if not all(isinstance(text, str) for text in some):
            raise ValueError("a corpus is texts, or lists of ids, and not both")
        for ids in tokenizer(some, add_special_tokens=False, verbose=False)["input_ids"]:
            yield from _flat(ids)


def _flat(ids: Iterable[Any]) -> Iterator[np.ndarray]:
    """Ids, or lists of them, as arrays."""
    if isinstance(ids, np.ndarray) and ids.ndim == 1:
        if len(ids):
            yield ids
        return
    alone: list[Any] = []
    for item in ids:
        if isinstance(item, Integral):
            alone.append(item)
        elif isinstance(item, str) or not isinstance(item, Iterable):
            raise ValueError(f"a corpus is texts, ids, or lists of ids; got {item!r:.80}")
        else:
            document = np.asarray(item)
            if document.ndim != 1:
                raise ValueError("a corpus is a list of token ids, or a list of such lists")
            if len(document):
                yield document
    if alone:
        yield np.asarray(alone)
