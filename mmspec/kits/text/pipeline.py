"""`TextPipeline`: text in, text out, in the manner of diffusers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.utils import BaseOutput
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmspec.api.pipeline import Generators, Seed, seeds_for
from mmspec.api.streaming import Stream
from mmspec.core.report import Report
from mmspec.core.warp import Warp
from mmspec.kits.text.language import LanguagePipeline, listed
from mmspec.registry.numbers import integers


@dataclass
class TextPipelineOutput(BaseOutput):
    """The output of a call.

    Attributes:
        texts: The continuations, without their prompts and without special tokens.
        ids: Their tokens, the end-of-text token included: one tensor `[new]` per continuation.
        report: Counts and times.
    """

    texts: list[str]
    ids: list[Tensor]
    report: Report


class TextPipeline(LanguagePipeline):
    """Continues prompts with a causal language model.

    Args:
        model: The language model.
        tokenizer: Its tokenizer.
    """

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str],
        max_new_tokens: int = 200,
        *,
        num_return_sequences: int = 1,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: Seed = None,
        generator: Generators = None,
        k: int | None = None,
        streamer: Any = None,
        return_dict: bool = True,
    ) -> TextPipelineOutput | tuple[list[str], list[Tensor], Report]:
        """Continue a prompt, or several in one batch.

        Args:
            prompt: A text, or several.
            max_new_tokens: The most new tokens per prompt.
            num_return_sequences: Continuations per prompt; those of one prompt follow each other, and its prompt is
                read once.
            temperature: Higher is more varied; 0 is greedy.
            top_k: Draw from the `top_k` likeliest tokens; lower is safer, 0 keeps all.
            top_p: Draw from the likeliest tokens that have this mass together; lower is safer, 1 keeps all.
            min_p: Drop tokens less likely than this share of the likeliest one; higher is safer, 0 keeps all.
            seed: A seed, or one per continuation. A continuation does not depend on the method or on the batch: under
                one seed it is that of its number among all of the call, under its own seed that of a call by itself.
            generator: A `torch.Generator`, or one per continuation, instead of `seed`.
            k: Units to draft per round; default: that of `use`.
            streamer: A streamer of transformers; for one continuation only.
            return_dict: Whether to return the output object and not a tuple of its fields.

        Raises:
            ValueError: The prompt is empty or a number is out of its range.
        """
        integers(max_new_tokens=max_new_tokens, num_return_sequences=num_return_sequences, k=k)
        if num_return_sequences < 1:
            raise ValueError(f"num_return_sequences must be at least 1, got {num_return_sequences}")
        inputs = {
            name: value.repeat_interleave(num_return_sequences, 0) for name, value in self._inputs(prompt).items()
        }
        rows, ids = len(inputs["input_ids"]), inputs["input_ids"]
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        warp = Warp.sampling(temperature, top_k, top_p, min_p)
        stream = Stream(streamer, ids)
        output = self.decoder(k).generate(
            inputs,
            max_new_tokens,
            seed=seeds_for(rows, seed, generator, "prompt" if num_return_sequences == 1 else "continuation"),
            warp=warp,
            ends=self.model.generation_config.eos_token_id,
            on_step=None if streamer is None else stream.step,
        )
        stream.end()
        texts = [self.tokenizer.decode(units, skip_special_tokens=True) for units in output.units]
        result = TextPipelineOutput(texts, output.units, output.report)
        return result if return_dict else (result.texts, result.ids, result.report)

    def _inputs(self, prompt: str | Sequence[str]) -> dict[str, Tensor]:
        """Ids `[batch, prompt]` of prompts, padded on the left, and their mask; no padding token is needed."""
        prompts = listed(prompt)
        rows = [torch.tensor(self.tokenizer(p)["input_ids"], dtype=torch.int64) for p in prompts]
        empty = [i for i, (p, row) in enumerate(zip(prompts, rows, strict=True)) if not p or not len(row)]
        if empty:
            raise ValueError(f"prompt {empty[0]} is empty; give some text to continue")
        ids = pad_sequence(rows, batch_first=True, padding_side="left")
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side="left")
        return {"input_ids": ids.to(self._execution_device), "attention_mask": mask.to(self._execution_device)}
