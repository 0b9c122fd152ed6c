"""Files of texts, or of their ids, that drafters count or search."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from mmspec.hosts.loading import load_tokenizer

PIECE = 2**20
"""Characters of a text that are tokenized at a time, to the end of a line."""


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
