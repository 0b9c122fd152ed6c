"""`InfillPipeline`: a text with blanks in, the text without them out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.utils import BaseOutput
from torch import Tensor

from mmspec.api.pipeline import Generators, Seed, seeds_for
from mmspec.core.report import Report
from mmspec.core.warp import Warp
from mmspec.kits.text.language import LanguagePipeline, listed
from mmspec.registry.numbers import integers
from mmspec_zoo.infill.any_order import Infill
from mmspec_zoo.infill.xlnet import MASK


@dataclass
class InfillPipelineOutput(BaseOutput):
    texts: list[str]  # the texts without blanks
    # The tokens of the blanks, in the order in which they were filled: one tensor `[blank]` per prompt
    ids: list[Tensor]
    report: Report  # counts and times


class InfillPipeline(LanguagePipeline):
    """Fills the blanks of texts with an any-order model, an XLNet.

    Example:
        ```python
        pipe = mmspec.Pipeline.from_pretrained("therealgabeguo/ASARM", method="assd", k=5)
        print(pipe("The <mask> <mask> of France is Paris.", seed=0).texts[0])
        ```
    """

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str],
        *,
        order: Sequence[Any] | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: Seed = None,
        generator: Generators = None,
        k: int | None = None,
        return_dict: bool = True,
    ) -> InfillPipelineOutput | tuple[list[str], list[Tensor], Report]:
        """Fill the blanks of a text, or of several in one batch.

        Args:
            prompt: A text, or several. Each `<mask>`, the tokenizer's mask token, is a blank of one token.
            order: The numbers of the blanks, counted from 0 in the text, in the order in which they are filled; for
                several texts a list of such lists. None: from left to right.
            temperature: Higher is more varied; 0 is greedy.
            top_k: Draw from the `top_k` likeliest tokens; lower is safer, 0 keeps all.
            top_p: Draw from the likeliest tokens that have this mass together; lower is safer, 1 keeps all.
            min_p: Drop tokens less likely than this share of the likeliest one; higher is safer, 0 keeps all.
            seed: A seed, or one per prompt.
            generator: A `torch.Generator`, or one per prompt, instead of `seed`.
            k: Blanks to draft per round; default: the number given to `use`.
            return_dict: Whether to return the output object and not a tuple of its fields.

        Raises:
            ValueError: A prompt has no blank or nothing else, an order is not one of its blanks, or a number is out of
                its range.
        """
        integers(k=k)
        inputs = self._inputs(prompt, order)
        output = self.decoder(k).generate(
            inputs,
            inputs.limit,
            seed=seeds_for(len(inputs.rows), seed, generator),
            warp=Warp.sampling(temperature, top_k, top_p, min_p),
            on_step=inputs.end,
        )
        texts = [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in inputs.filled(output.units)]
        result = InfillPipelineOutput(texts, output.units, output.report)
        return result if return_dict else (result.texts, result.ids, result.report)

    def _inputs(self, prompt: str | Sequence[str], order: Sequence[Any] | None) -> Infill:
        if self.tokenizer.mask_token_id != MASK:
            raise ValueError(
                f"the tokenizer's mask token has the id {self.tokenizer.mask_token_id}, and that of XLNet is {MASK}: "
                "it is the tokenizer of another model"
            )
        prompts = listed(prompt)
        ids = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in prompts]
        rows = [[None if token == MASK else token for token in row] for row in ids]
        if order is None:
            return Infill(rows)
        orders = [order] if isinstance(prompt, str) else order
        if len(orders) != len(rows) or not all(isinstance(each, Sequence) for each in orders):
            raise ValueError(f"for {len(rows)} texts, order is a list of {len(rows)} lists of numbers; got {order!r}")
        blanks = [[place for place, token in enumerate(row) if token is None] for row in rows]
        return Infill(rows, [_places(*each) for each in zip(orders, blanks, strict=True)])


def _places(order: Sequence[int], blanks: Sequence[int]) -> list[int]:
    """Positions of the blanks in an order of their numbers."""
    if sorted(order) != list(range(len(blanks))):
        raise ValueError(f"an order has the numbers 0 … {len(blanks) - 1} of the text's blanks, each once; got {order}")
    return [blanks[number] for number in order]
