"""Whether the parts of a pipeline fit each other."""

from typing import Any

from mmspec.kits.pictures.encoding import draws_classes
from mmspec.kits.pictures.models.captions import CaptionEncoder

Numbers = tuple[str, int, int]
"""A text with places for two numbers that have to be equal, and both numbers."""


def refuse_misfits(transformer: Any, text_encoder: Any, tokenizer: Any, *others: Numbers) -> None:
    """Refuse parts that do not fit each other.

    Args:
        transformer: A transformer as `mmspec.kits.pictures.encoding` describes it.
        text_encoder: Ours or transformers' T5; None for classes, or where features are given.
        tokenizer: The captions' tokenizer; or None.
        *others: Further numbers of the transformer and of the decoder of pictures that have to be equal.

    Raises:
        ValueError: Names both numbers.
    """
    model, numbers = transformer.config, list(others)
    if text_encoder is not None:
        if draws_classes(transformer):
            raise ValueError("the transformer draws classes, so a text encoder has nothing to do; leave it out")
        ours = isinstance(text_encoder, CaptionEncoder)
        width = text_encoder.config.dim if ours else text_encoder.config.d_model
        numbers.append(("widths: the transformer reads features of {}, the encoder makes {}", model.caption_dim, width))
        if ours:
            length = text_encoder.config.length
            numbers.append(("lengths: the transformer reads {} words, the encoder {}", model.cls_token_num, length))
        if tokenizer is not None and len(tokenizer) > text_encoder.config.vocab_size:
            known = text_encoder.config.vocab_size
            raise ValueError(f"the tokenizer has {len(tokenizer)} tokens and the text encoder knows {known} of them")
    wrong = [text.format(a, b) for text, a, b in numbers if a != b]
    if wrong:
        raise ValueError(f"these parts do not fit each other: {'; '.join(wrong)}")
