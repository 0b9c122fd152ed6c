"""What the conformance kit tries the drafters with another vocabulary on."""

from functools import cache
from typing import Any

from mmspec.hosts.target import TransformersTarget
from mmspec.testing.conformance.example import Example
from mmspec.testing.tiny_models import SIZES, again, llama, prompt, random_model, small
from mmspec_zoo.vocabularies.omnidraft import OmniDraftOptions
from mmspec_zoo.vocabularies.vocab_trim import VocabTrimOptions

LETTERS = "abcd"
JOINS = (("a", "b"), ("c", "d"), ("ab", "c"))
"""The target's tokens beside the letters."""


def vocab_trim() -> list[Example]:
    """Five ids of seven, of a corpus; and of the target's own output, soon."""
    texts = [[2, 3, 5, 3, 2, 5, 5], [3, 4]]
    return [
        Example(options=VocabTrimOptions(model=small(), keep=5, corpus=texts)),
        Example(options=VocabTrimOptions(model=small(), keep=5, after=20), learns=True),
    ]


def omnidraft() -> Example:
    """A model of letters, for a target that has some pairs and a triple of them, too."""
    options = OmniDraftOptions(model=speller(), tokenizer=letters(JOINS), assistant_tokenizer=letters(), capacity=2)
    return Example(options=options, target=TransformersTarget(llama()), prompt=prompt, again=again, learns=True)


@cache
def letters(joins: tuple[tuple[str, str], ...] = ()) -> Any:
    """A tokenizer of four letters, and of what joining two tokens makes."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokens = [*LETTERS, *("".join(pair) for pair in joins)]
    core = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, list(joins)))
    return PreTrainedTokenizerFast(tokenizer_object=core)


@cache
def speller() -> Any:
    """A random model of the letters alone."""
    from transformers import LlamaConfig

    return random_model(LlamaConfig(**{**SIZES, "vocab_size": len(LETTERS)}), seed=5, head=8.0)
