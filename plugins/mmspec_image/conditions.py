"""What `TextToImagePipeline` hands its target: classes or captions, and what guidance leads away from."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec_image.models.captions import CaptionEncoder
from mmspec_image.prompts import encode
from mmspec_image.targets.llamagen import Condition

Prompt = str | Sequence[str] | None
Labels = int | Sequence[int] | Tensor
Given = tuple[Prompt, Tensor | None, Tensor | None]
"""A caption or several, or features of captions and their mask."""


def count(prompt: Prompt, class_labels: Labels | None, embeds: Tensor | None) -> int:
    """How many prompts a call has.

    Raises:
        ValueError: There is none, it comes in two forms, or it is none.
    """
    given = {"prompt": prompt, "class_labels": class_labels, "prompt_embeds": embeds}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise ValueError(f"give one of prompt=, class_labels= and prompt_embeds=; got {' and '.join(named) or 'none'}")
    if prompt is not None:
        return len(captions_of(prompt))
    return len(_labels(class_labels)) if class_labels is not None else len(embeds)  # type: ignore[arg-type]


def of_classes(pipe: Any, labels: Labels, rows: int, null: Labels | None, guided: bool) -> Condition:
    """Classes, and the classes that guidance leads away from.

    Args:
        pipe: The pipeline.
        labels: One for every prompt.
        rows: Prompts.
        null: One for all, or one a prompt; None is no class.
        guided: Whether there is guidance.

    Raises:
        ValueError: There is no such class.
    """
    device, classes = pipe._execution_device, pipe.transformer.config.num_classes
    given = _in_range(_labels(labels), classes)
    if not guided:
        return Condition(given.to(device), guided=False)
    away = torch.tensor([classes]) if null is None else _in_range(_labels(null), classes + 1)
    return Condition(given.to(device), null=_one_each(away, rows, "negative labels").to(device))


def of_captions(pipe: Any, positive: Given, negative: Given, rows: int, guided: bool) -> Condition:
    """Features of captions, and of those that guidance leads away from.

    Args:
        pipe: The pipeline.
        positive: What the pictures show.
        negative: One for all, or one a prompt; "" and None are no caption.
        rows: Prompts.
        guided: Whether there is guidance.

    Raises:
        ValueError: A caption is empty, too long, or of unknown words only; features have another shape.
    """
    features, mask = _encoded(pipe, *positive)
    if not guided:
        return Condition(features, mask, guided=False)
    null, seen = _no_caption(pipe, rows, mask)
    captions, embeds, embeds_mask = negative
    if embeds is not None:
        null, seen = (_one_each(t, rows, "negative_prompt_embeds") for t in _encoded(pipe, None, embeds, embeds_mask))
    elif captions is not None:
        said = captions_of(captions)
        said = said * rows if len(said) == 1 else said
        if len(said) != rows:
            raise ValueError(f"{len(said)} negative prompts for {rows} prompts; give one, or one a prompt")
        there = [i for i, caption in enumerate(said) if caption.strip()]
        if there:
            null, seen = null.clone(), seen.clone()
            null[there], seen[there] = _encoded(pipe, [said[i] for i in there], None, None)
    return Condition(features, mask, null, seen)


def repeated(condition: Condition, times: int) -> Condition:
    """Every prompt so many times, its pictures together."""

    def more(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.repeat_interleave(times, 0)

    given = condition.given.repeat_interleave(times, 0)
    return Condition(given, more(condition.mask), more(condition.null), more(condition.null_mask), condition.guided)


def refuse_misfits(transformer: Any, vq: Any, text_encoder: Any, tokenizer: Any) -> None:
    """Refuse parts that do not fit each other.

    Raises:
        ValueError: Names both numbers.
    """
    model = transformer.config
    scales = len(vq.config.encoder_ch_mult), len(vq.config.decoder_ch_mult)
    numbers = [
        ("codes: the transformer draws {}, the VQ has {}", model.vocab_size, vq.config.codebook_size),
        ("factors: the VQ's encoder halves {} times, its decoder doubles {} times", *(n - 1 for n in scales)),
    ]
    if text_encoder is not None:
        if model.model_type == "c2i":
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


def refuse_size(side: int, height: int | None, width: int | None) -> None:
    """Refuse a picture of any other size than `side` pixels.

    Raises:
        ValueError: Names both sizes.
    """
    wanted = (side if height is None else height, side if width is None else width)
    if wanted != (side, side):
        raise ValueError(f"this model draws {side} × {side} pixels (height × width), not {wanted[0]} × {wanted[1]}")


def _encoded(pipe: Any, prompt: Prompt, embeds: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Features `[prompt, length, width]` and mask, in the transformer's kind of numbers."""
    model, device = pipe.transformer.config, pipe._execution_device
    if embeds is None:
        if pipe.text_encoder is None or pipe.tokenizer is None:
            raise ValueError("this pipeline has no text encoder: give prompt_embeds= instead of prompt=")
        assert prompt is not None
        embeds, mask = encode(captions_of(prompt), pipe.tokenizer, pipe.text_encoder, model.cls_token_num, device)
    wanted = (model.cls_token_num, model.caption_dim)
    if embeds.dim() != 3 or embeds.shape[1:] != wanted:
        raise ValueError(f"embeddings are [prompt, {wanted[0]}, {wanted[1]}] of this model, not {list(embeds.shape)}")
    seen = torch.ones(embeds.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
    if seen.shape != embeds.shape[:2]:
        raise ValueError(f"the mask of {list(embeds.shape[:2])} embeddings is {list(seen.shape)}")
    return embeds.to(device, pipe.transformer.dtype), seen.to(device)


def _no_caption(pipe: Any, rows: int, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The model's own null caption. Our models learned to see all of it, the published ones what the prompt shows."""
    null = pipe.transformer.cls_embedding.uncond_embedding.to(mask.device).expand(rows, -1, -1)
    return null, torch.ones_like(mask) if isinstance(pipe.text_encoder, CaptionEncoder) else mask


def captions_of(prompt: str | Sequence[str]) -> list[str]:
    """One caption or several, as a list.

    Raises:
        ValueError: It is neither.
    """
    captions = [prompt] if isinstance(prompt, str) else list(prompt)
    if not captions or not all(isinstance(caption, str) for caption in captions):
        raise ValueError(f"a prompt is a text, or a list of at least one text, not {prompt!r}")
    return captions


def _labels(labels: Labels) -> Tensor:
    listed = torch.as_tensor(labels).reshape(-1)
    if not len(listed) or listed.is_floating_point() or listed.dtype == torch.bool:
        raise ValueError(f"class_labels is a class, or a list of at least one class, not {labels!r}")
    return listed.long()


def _in_range(labels: Tensor, classes: int) -> Tensor:
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise ValueError(f"there is no class {int(wrong[0])}: this model has the classes 0 to {classes - 1}")
    return labels


def _one_each(values: Tensor, rows: int, what: str) -> Tensor:
    if len(values) not in (1, rows):
        raise ValueError(f"{len(values)} {what} for {rows} prompts; give one, or one a prompt")
    return values.expand(rows, *values.shape[1:])
