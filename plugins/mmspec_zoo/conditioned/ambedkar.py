"""`ambedkar`: a smaller model on the bare prompt drafts, and the target verifies behind a condition.

AMBEDKAR (arXiv 2509.02133), "fairness by speculation": a small model, which may be biased, proposes; a model that reads
a constitution's clauses in front of the prompt verifies. The clauses may be any text here: rules of a house, a style, a
persona. The drafter never reads them, so that its prompt stays short, and its cache may be shared.
With `swap`, pairs of identities, it does what the paper does under the rule `counterfactual`, which is lossy: the small
model proposes, and of its proposals the one is emitted whose continuation a swap of identities in the prompt changes
least. The verifier then reads two prompts, and passes run twice. Emitted units are the same behind both prompts.
Without `swap` verification is exact, and the output is the conditioned model's own: not a proposal of the small model,
but what the large one says behind the clauses.
Guarantee: the rule's, with respect to the model's distribution behind the condition, p(· | C, prompt, text):
under `match` a seed gives the output of plain decoding of prompts with the condition in them, whoever drafts. The
call's logits processors read the prompt without it. With an empty condition the target is the model itself.
Knobs: `condition` (a text, or ids); `behind` (tokens of the prompt in front of it: 1 if the tokenizer begins texts with
one); `swap` (more pairs see more differences); `proposals` (more of them to choose among, and to verify); `k`.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.drafters.shapes import Branching, Chain
from mmspec.core.protocols import Target
from mmspec.hosts.conditioned import Condition, TakesCondition
from mmspec.hosts.prompt import as_ids
from mmspec.kits.text.small_model import SmallModelDrafter, SmallModelOptions, target_tokenizer
from mmspec.registry.options import option
from mmspec_zoo.conditioned.counterfactual import SwappedTarget, swapped
from mmspec_zoo.specs import AMBEDKAR


@dataclass(frozen=True)
class AmbedkarOptions(SmallModelOptions):
    condition: Any = option(None, "what the target reads inside of every prompt: text or ids")
    behind: Annotated[int, Field(ge=0)] = option(
        0, "tokens of the prompt that stay in front of it; 1 behind a token that begins texts"
    )
    swap: tuple[tuple[str, str], ...] = option(
        (), "pairs of words that say who a prompt is about, as (Hindu, Muslim), for the rule counterfactual"
    )
    proposals: Annotated[int, Field(ge=1, le=16)] = option(4, "units among which that rule chooses")


LEVELS = 2
"""Most choices of one pass: each multiplies the nodes of its draft by the number of proposals."""


class Ambedkar(SmallModelDrafter):
    """Drafts a chain from the bare prompt, for the target behind a condition."""

    wrt = AMBEDKAR.wrt

    def __init__(self, options: AmbedkarOptions = AmbedkarOptions()) -> None:
        if options.condition is None:
            raise ValueError('ambedkar needs what the target reads: condition="…", or its ids; "" is no condition')
        chooses = bool(options.swap)
        super().__init__(options, AMBEDKAR.name, Branching((options.proposals,) * LEVELS) if chooses else Chain())
        if chooses:
            self.needs = self.needs | {"counterfactual"}
            self.advice = ', which rule="counterfactual" does, and swap= is for it alone'

    def wrap(self, target: Target) -> Target:
        if not isinstance(target, TakesCondition):
            raise ValueError(f"ambedkar puts a text inside of prompts, which {type(target).__name__} does not read")
        behind = target.with_condition(Condition(self._ids(target), self.options.behind))
        if not self.options.swap:
            return behind
        return SwappedTarget(behind, behind, swapped(self.options.swap, self._tokenizer(target, "swap=")))

    def _ids(self, target: Target) -> Tensor:
        """The condition in the target's ids, `[n]`."""
        condition = self.options.condition
        if not isinstance(condition, str):
            return as_ids(condition)
        if not condition:
            return torch.zeros(0, dtype=torch.int64)
        tokenizer = self._tokenizer(target, "a condition in words")
        return torch.tensor(tokenizer(condition, add_special_tokens=False)["input_ids"], dtype=torch.int64)

    def _tokenizer(self, target: Target, what: str) -> Any:
        """The target's tokenizer, for what is said in words."""
        tokenizer = target_tokenizer(target, self.options)
        if tokenizer is None:
            raise ValueError(
                f"the target was not loaded from a folder with a tokenizer, which {what} needs: give tokenizer=, or "
                "a condition's ids without swap="
            )
        return tokenizer
