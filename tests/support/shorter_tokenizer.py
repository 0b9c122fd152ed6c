"""The tokenizer that a byte-pair tokenizer was, before it learned its later tokens."""

import json
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast


def first_tokens(tokenizer: Any, size: int) -> PreTrainedTokenizerFast:
    """A tokenizer of the first `size` ids alone, which are those of `tokenizer`; it spells the others in pieces."""
    made = json.loads(tokenizer.backend_tokenizer.to_str())
    model = made["model"]
    model["vocab"] = {token: number for token, number in model["vocab"].items() if number < size}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in model["vocab"]]
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(made)))
