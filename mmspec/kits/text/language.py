"""What pipelines of language models share: a model, its tokenizer, and how both are loaded."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mmspec.api.pipeline import Pipeline
from mmspec.api.saved import restored
from mmspec.hosts.dtypes import dtype_of
from mmspec.hosts.loading import load_model, load_tokenizer


class LanguagePipeline(Pipeline):
    """The base of pipelines that have a language model and its tokenizer; a subclass adds `__call__`.

    Args:
        model: The language model.
        tokenizer: Its tokenizer.
    """

    model_cpu_offload_seq = "model"
    makes = "text"

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.register_modules(model=model, tokenizer=tokenizer)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        model: PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        device: str = "cpu",
        dtype: str | torch.dtype | None = None,
        torch_dtype: str | torch.dtype | None = None,
        **how: Any,
    ) -> Self:
        """Load model and tokenizer.

        Args:
            name: The name or folder, as in `mmspec.Pipeline.from_pretrained`.
            model: A live model to use instead of the one at `name`.
            tokenizer: A live tokenizer to use instead of the one at `name`.
            device: The device for a model that is loaded.
            dtype: The dtype of its weights, by name or torch's own; default: float32.
            torch_dtype: The same setting under diffusers' name.
            **how: The arguments of `use`; default: those that were saved with the pipeline.

        Raises:
            ValueError: There is no such model or dtype, or an argument of `use` is wrong.
        """
        model_at, tokenizer_at = cls.places_of(str(name), "model", "tokenizer")
        if model is None:
            model = load_model(model_at, device, dtype_of(dtype, torch_dtype))
        if tokenizer is None:
            tokenizer = load_tokenizer(tokenizer_at)
        pipe = cls(model, tokenizer)
        pipe.register_to_config(_name_or_path=str(name))
        return pipe.use(**restored(Path(name), how))


def listed(prompt: str | Sequence[str]) -> list[str]:
    """The texts of a call's prompt.

    Raises:
        ValueError: It is neither a text nor a list of some.
    """
    prompts = [prompt] if isinstance(prompt, str) else list(prompt) if isinstance(prompt, Iterable) else []
    if not prompts or not all(isinstance(p, str) for p in prompts):
        raise ValueError(f"a prompt is a text, or a list of at least one text, not {prompt!r}")
    return prompts
