"""`ambedkar`: a smaller model on the bare prompt drafts, and the target verifies behind a condition.

AMBEDKAR (arXiv 2509.02133), "fairness by speculation": a small model, which may be biased, proposes; a model that reads
a constitution's clauses in front of the prompt verifies. The clauses may be any text here: rules of a house, a style, a
persona. The drafter never reads them, so that its prompt stays short, and its cache may be shared.
The paper could not be read here: it scores the small model's proposals by the conditioned model and picks the best, or
keeps those above a threshold, weighted by how little a swap of identity terms changes the scores (a reconstruction).
That follows neither model. Here verification is exact instead, and the output is the conditioned model's own: not a
proposal of the small model, but what the large one says behind the clauses. The scores of swapped terms are not built.
Guarantee: the rule's, with respect to the model's distribution behind the condition, p(· | C, prompt, text):
under `match` a seed gives the output of plain decoding of prompts with the condition in them, whoever drafts. The
call's logits processors read the prompt without it. With an empty condition the target is the model itself.
Knobs: `condition` (a text, or ids); `behind` (tokens of the prompt in front of it: 1 if the tokenizer begins texts with
one); `k`.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.drafters.shapes import Chain
from mmspec.core.protocols import Target
from mmspec.hosts.conditioned import Condition, TakesCondition
from mmspec.hosts.prompt import as_ids
from mmspec.kits.text.small_model import SmallModelDrafter, SmallModelOptions, target_tokenizer
from mmspec.registry.options import option
from mmspec_zoo.specs import AMBEDKAR


@dataclass(frozen=True)
class AmbedkarOptions(SmallModelOptions):
    condition: Any = option(None, "what the target reads inside of every prompt: text or ids")
    behind: Annotated[int, Field(ge=0)] = option(
        0, "tokens of the prompt that stay in front of it; 1 behind a token that begins texts"
    )


class Ambedkar(SmallModelDrafter):
    """Drafts a chain from the bare prompt, for the target behind a condition."""

    wrt = AMBEDKAR.wrt

    def __init__(self, options: AmbedkarOptions = AmbedkarOptions()) -> None:
        if options.condition is None:
            raise ValueError('ambedkar needs what the target reads: condition="…", or its ids; "" is no condition')
        super().__init__(options, AMBEDKAR.name, Chain())

    def wrap(self, target: Target) -> Target:
        if not isinstance(target, TakesCondition):
            raise ValueError(f"ambedkar puts a text inside of prompts, which {type(target).__name__} does not read")
        return target.with_condition(Condition(self._ids(target), self.options.behind))

    def _ids(self, target: Target) -> Tensor:
        """The condition in the target's ids, `[n]`."""
        condition = self.options.condition
        if not isinstance(condition, str):
            return as_ids(condition)
        if not condition:
            return torch.zeros(0, dtype=torch.int64)
        tokenizer = target_tokenizer(target, self.options)
        if tokenizer is None:
            raise ValueError(
                "the target was not loaded from a folder with a tokenizer, which a condition in words needs: give "
                "tokenizer=, or the condition's ids"
            )
        return torch.tensor(tokenizer(condition, add_special_tokens=False)["input_ids"], dtype=torch.int64)
