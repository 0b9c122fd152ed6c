"""The ids that a head with a smaller vocabulary scores: those that are learnt most often, and all special ones.

A head cannot draft an id that it does not score, so that its acceptance is at most the mass of its ids. What the
target never writes, as the words of questions, counts nothing; what ends a text or opens a thought is always there.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mmspec_text.training.texts import Source
from mmspec_text.training.written import ends


def drafted_ids(sources: Sequence[Source], size: int, model: Any, tokenizer: PreTrainedTokenizerBase) -> Tensor | None:
    """The ids, `[size]` int64, ascending; None if these are all.

    Args:
        sources: What the head learns.
        size: How many ids.
        model: The target.
        tokenizer: Its tokenizer; special ids are what it calls so, all that were added to it, and what ends a text.

    Raises:
        ValueError: There are more special ids than places.
    """
    vocab: int = model.config.get_text_config(decoder=True).vocab_size
    if size >= vocab:
        return None
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder, *ends(model).tolist()}
    always = torch.tensor(sorted(one for one in special if one < vocab), dtype=torch.int64)
    if len(always) > size:
        raise ValueError(
            f"a vocabulary of {size} ids (draft_vocab) has no place for the {len(always)} special ones of the target"
        )
    seen = torch.zeros(vocab, dtype=torch.int64)
    for source in sources:
        seen += source.learnt.bincount(minlength=vocab)
    seen[always] = int(seen.max()) + 1
    return seen.sort(descending=True, stable=True).indices[:size].sort().values  # of equal ones the lowest ids
