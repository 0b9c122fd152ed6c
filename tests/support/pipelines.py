"""Pipelines of diffusers without what they do not need to write texts, and a tokenizer whose texts are ids."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor
from transformers import BatchEncoding

from tests.support.zoo.vision import VISION, VisionRecipe


class Words:
    """A tokenizer or processor with the calls that the pipelines make; its texts are the ids themselves.

    Args:
        pictures: The model whose processor of pictures it is.
    """

    model_max_length = 60
    pad_token_id = 0
    eos_token_id = None

    def __init__(self, pictures: VisionRecipe = VISION["qwen2_5_vl"]) -> None:
        self.tokenizer = self
        self.pictures = pictures

    def __call__(self, text: Any = None, images: Any = None, **kwargs: Any) -> BatchEncoding:
        if images is not None:
            return BatchEncoding(self.pictures.inputs(1))
        rows = len(text) if isinstance(text, list) else 1
        ids = (torch.arange(20) % 5 + 3).expand(rows, -1)
        return BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    def apply_chat_template(self, messages: Any, tokenize: bool = True, **kwargs: Any) -> Any:
        return self(messages if isinstance(messages[0], list) else "one") if tokenize else "one"

    def decode(self, ids: Tensor, **kwargs: Any) -> str:
        return " ".join(map(str, ids.tolist()))

    def batch_decode(self, ids: Any, **kwargs: Any) -> list[str]:
        return [self.decode(row) for row in ids]


def bare(kind: Any, **parts: Any) -> Any:
    """A pipeline of a class, with the parts that are given, a scheduler, and None for every other part."""
    names = {name for name, given in inspect.signature(kind).parameters.items() if given.default is given.empty}
    return kind(**{**dict.fromkeys(names), "scheduler": FlowMatchEulerDiscreteScheduler(), **parts})


def seeded(call: Callable[[], Any]) -> tuple[Any, Tensor]:
    """The result of a call after a fixed seed, and the state in which it leaves torch's generator."""
    torch.manual_seed(7)
    return call(), torch.get_rng_state()
