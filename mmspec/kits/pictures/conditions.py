"""Conditions of picture targets: classes or features of captions, and the null condition for guidance.

A pipeline for captions has `text_encoder` and `tokenizer`, and a `transformer` whose `config` says `cls_token_num` and
`caption_dim`, and whose `cls_embedding` is a `CaptionEmbedder`; one for classes, a transformer whose `config` says
`model_type = "c2i"` and `num_classes`.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from mmspec.kits.pictures.arguments import Labels, Prompt, in_range, labels_of, negatives_of, one_each
from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.kits.pictures.prompts import encode
from mmspec.kits.text.language import listed


class Guiding(NamedTuple):
    """The condition of a call's pictures, and the one that guidance leads away from; targets' conditions have it."""

    given: Tensor  # one row a picture: classes `[batch]`, features `[batch, n, width]`, or ids of a prompt `[batch, n]`
    mask: Tensor | None  # `[batch, n]`: positions that are not padding; None: all
    null: Tensor | None  # what guidance leads away from, maybe of another length; None: the model's own
    null_mask: Tensor | None  # the mask of `null`; or None


@dataclass(frozen=True)
class Condition:
    given: Tensor  # classes `[batch]` int64, or caption features `[batch, caption, width]`
    mask: Tensor | None = None  # `[batch, caption]` bool: positions that are not padding; None: all
    # What guidance leads away from, in the form of `given`; None: the model's own null condition
    null: Tensor | None = None
    null_mask: Tensor | None = None  # the mask of `null`; None: `mask`
    guided: bool = True  # whether there is guidance, and so an unconditional half

    @property
    def guiding(self) -> Guiding:
        return Guiding(self.given, self.mask, self.null, self.null_mask)


Some = TypeVar("Some", bound=Condition)


def repeated(condition: Some, times: int) -> Some:
    """Every row `times` times; the rows of a prompt stay together."""
    values = {field.name: getattr(condition, field.name) for field in fields(condition)}
    rows = {name: value for name, value in values.items() if isinstance(value, Tensor) and value.dim()}
    more: dict[str, Any] = {name: value.repeat_interleave(times, 0) for name, value in rows.items()}
    return replace(condition, **more)


def lengthened(features: Tensor, mask: Tensor | None, length: int) -> tuple[Tensor, Tensor | None]:
    """Features `[batch, n, width]` with padding on the left up to `length` positions, and their mask; classes
    `[batch]`, and features that are long enough, stay as they are.
    """
    missing = length - features.shape[1] if features.dim() == 3 else 0
    if missing <= 0:
        return features, mask
    seen = torch.ones(features.shape[:2], device=features.device) if mask is None else mask
    return _padded(features, length), _padded(seen.bool(), seen.shape[1] + missing)


def replaced(null: Tensor, mask: Tensor | None, row: int, by: Guiding) -> tuple[Tensor, Tensor | None]:
    """A null condition `[batch, n, …]` with a row replaced by what one picture shows, and its mask `[batch, n]` (None:
    no padding); what is shorter is padded on the left.
    """
    new = by.given.to(null)
    seen = torch.ones(null.shape[:2], device=null.device) if mask is None else mask
    own = seen.new_ones(new.shape[:2]) if by.mask is None else by.mask.to(seen)
    longest = max(null.shape[1], new.shape[1])
    null, new, seen, own = (_padded(each, longest) for each in (null, new, seen, own))
    null[row], seen[row] = new[0], own[0]
    return null, None if bool(seen.all()) else seen


def _padded(values: Tensor, length: int) -> Tensor:
    """A copy of `[batch, n, …]` with zeros on the left, `[batch, length, …]`."""
    whole = values.new_zeros(len(values), length, *values.shape[2:])
    whole[:, length - values.shape[1] :] = values
    return whole


Given = tuple[Prompt, Tensor | None, Tensor | None]  # captions, or features of captions and their mask


def draws_classes(transformer: Any) -> bool:
    """True if a model's condition is a class; a configuration without `model_type` means captions."""
    return transformer.config.get("model_type") == "c2i"


def of_classes(pipe: Any, labels: Labels, rows: int, null: Labels | None, guided: bool) -> Condition:
    """Classes, one a prompt, and the classes `null` that guidance leads away from: one for all, or one a prompt; None:
    the model's own null class.
    """
    device, classes = pipe._execution_device, pipe.transformer.config.num_classes
    given = in_range(labels_of(labels), classes)
    if not guided:
        return Condition(given.to(device), guided=False)
    away = torch.tensor([classes]) if null is None else in_range(labels_of(null), classes + 1)
    return Condition(given.to(device), null=one_each(away, rows, "negative labels").to(device))


def of_captions(pipe: Any, positive: Given, negative: Given, rows: int, guided: bool) -> Condition:
    """Features of captions, and of the captions that guidance leads away from: one for all, or one a prompt; "" and
    None are the null caption.
    """
    features, mask = _encoded(pipe, *positive)
    if not guided:
        return Condition(features, mask, guided=False)
    null, seen = _no_caption(pipe, rows, mask)
    captions, embeds, embeds_mask = negative
    if embeds is not None:
        away = lengthened(embeds, embeds_mask, pipe.transformer.config.cls_token_num)
        null, seen = (one_each(t, rows, "negative_prompt_embeds") for t in _encoded(pipe, None, *away))
    elif captions is not None:
        said = negatives_of(captions, rows)
        there = [i for i, caption in enumerate(said) if caption.strip()]
        if there:
            null, seen = null.clone(), seen.clone()
            null[there], seen[there] = _encoded(pipe, [said[i] for i in there], None, None)
    return Condition(features, mask, null, seen)


def _encoded(pipe: Any, prompt: Prompt, embeds: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Features `[prompt, length, width]` in the transformer's dtype, and their mask."""
    model, device = pipe.transformer.config, pipe._execution_device
    if embeds is None:
        if pipe.text_encoder is None or pipe.tokenizer is None:
            raise ValueError("this pipeline has no text encoder: load it with text_encoder=, or give prompt_embeds=")
        assert prompt is not None
        embeds, mask = encode(listed(prompt), pipe.tokenizer, pipe.text_encoder, model.cls_token_num, device)
    wanted = (model.cls_token_num, model.caption_dim)
    if embeds.dim() != 3 or embeds.shape[1:] != wanted:
        raise ValueError(f"embeddings are [prompt, {wanted[0]}, {wanted[1]}] of this model, not {list(embeds.shape)}")
    seen = torch.ones(embeds.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
    if seen.shape != embeds.shape[:2]:
        raise ValueError(f"the mask of {list(embeds.shape[:2])} embeddings is {list(seen.shape)}")
    return embeds.to(device, pipe.transformer.dtype), seen.to(device)


def _no_caption(pipe: Any, rows: int, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The model's own null caption. Our models attend to all of it, published ones to the prompt's positions."""
    null = pipe.transformer.cls_embedding.uncond_embedding.to(mask.device).expand(rows, -1, -1)
    return null, torch.ones_like(mask) if isinstance(pipe.text_encoder, CaptionEncoder) else mask


Numbers = tuple[str, int, int]  # a text with places for two numbers that have to be equal, and both numbers


def refuse_misfits(pipe: Any, *others: Numbers) -> None:
    """Refuse parts of a pipeline that do not fit each other: the transformer and encoder of captions (None: classes, or
    features are given), and further numbers that have to be equal.
    """
    model, text_encoder, tokenizer = pipe.transformer.config, pipe.text_encoder, pipe.tokenizer
    numbers = list(others)
    if text_encoder is not None:
        if draws_classes(pipe.transformer):
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
