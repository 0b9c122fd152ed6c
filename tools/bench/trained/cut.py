"""A draft model that has the first tokens of its vocabulary alone, and spells the others."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast


def cut_short(model: Any, tokenizer: Any, size: int, folder: Path) -> None:
    """Write a model whose ids are the first `size`, with its tokenizer: pairs that would make others are not merged."""
    made = json.loads(tokenizer.backend_tokenizer.to_str())
    vocab = {token: number for token, number in made["model"]["vocab"].items() if number < size}
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in made["model"]["merges"]]
    made["model"] |= {"vocab": vocab, "merges": [pair for pair in pairs if "".join(pair) in vocab]}
    made["added_tokens"] = [token for token in made["added_tokens"] if token["id"] < size]
    named = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if str(token) in vocab}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(made)), **named).save_pretrained(folder)
    model.resize_token_embeddings(size)
    model.save_pretrained(folder)
