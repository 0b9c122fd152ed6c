"""Janus as a model of pictures, and its prompts: the prompt itself, and what guidance leads away from."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GenerationConfig, JanusForConditionalGeneration

from mmspec.kits.pictures.conditions import Guiding


class JanusForImages(JanusForConditionalGeneration):
    """transformers' Janus, unchanged; the class tells the registry that it is used for pictures.

    A Janus writes texts and draws pictures; transformers chooses with an argument of `generate`. Here the class
    chooses the target: `JanusForConditionalGeneration` is a language model to `mmspec.enable`, and this class, which
    loads the same files, is a model of pictures. `JanusTarget` takes both.

    Example:
        ```python
        model = JanusForImages.from_pretrained("deepseek-community/Janus-Pro-1B")
        ```
    """


@dataclass(frozen=True)
class JanusPrompt:
    """A prompt for pictures: `JanusPrompt(**processor(text=chats, generation_mode="image"))`."""

    input_ids: Tensor  # `[batch, prompt]` int64, padded on the left; the last token is begin-of-image
    attention_mask: Tensor | None = None  # `[batch, prompt]`: 0 at padding; None: no padding
    # What guidance leads away from, `[batch, any]`; None: `input_ids` with their words padded out
    negative_ids: Tensor | None = None
    negative_mask: Tensor | None = None  # the mask of `negative_ids`
    guided: bool = True  # whether there is guidance, and so an unconditional half

    @property
    def guiding(self) -> Guiding:
        return Guiding(self.input_ids, self.attention_mask, self.negative_ids, self.negative_mask)


def padded_out(config: GenerationConfig, ids: Tensor) -> Tensor:
    """The null prompt of `generate`: `ids [batch, prompt]`, all but begin-of-text and begin-of-image padded."""
    begin, image, pad = _special(config)
    return torch.where((ids == begin) | (ids == image), ids, pad)


def _special(config: GenerationConfig) -> tuple[int, int, int]:
    """Ids of begin-of-text, begin-of-image and padding, looked up as `generate` does."""
    ends = config.eos_token_id
    end = ends[0] if isinstance(ends, list) else ends
    pad = config.pad_token_id if config.pad_token_id is not None else end
    image = (getattr(config, "generation_kwargs", None) or {}).get("boi_token_id")
    found = {"bos_token_id": config.bos_token_id, "generation_kwargs['boi_token_id']": image, "pad_token_id": pad}
    missing = [name for name, value in found.items() if value is None]
    if missing:
        raise ValueError(
            f"what guidance leads away from is not known: the model's generation_config has no {missing[0]}; set "
            "it, or give negative_ids"
        )
    begin, image, pad = found.values()
    return begin, image, pad
