"""A target behind a condition: the same model with units of its own in every prompt, which the call does not show.

The target's distribution is then p(next unit | condition, prompt, units so far): that of the model's own `generate` on
prompts that hold the condition. The call's rows, its drafters and its logits processors see the prompt that was given;
the condition is in the target's cache alone, and is read once a call.
An empty condition is no condition.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.guided import NULL_INPUTS
from mmspec.core.protocols import Target
from mmspec.core.types import Prefill
from mmspec.hosts import prefill, prompt


@dataclass(frozen=True, eq=False)
class Condition:
    """Units inside of every prompt."""

    ids: Tensor  # `[n]` int64
    behind: int = 0  # how many of a prompt's own units stay in front of them: 1 behind a token that begins every text

    def __len__(self) -> int:
        return len(self.ids)

    def checked(self, vocab: int | None) -> "Condition":
        """The condition, if a model with so many ids can read it."""
        if self.behind < 0:
            raise ValueError(f"a condition stands behind 0 or more units of a prompt, not behind {self.behind}")
        if self.ids.dim() != 1:
            raise ValueError(f"a condition is one row of ids, and not of the shape {list(self.ids.shape)}")
        if not len(self):
            return replace(self, ids=self.ids.long())
        return replace(self, ids=prompt.read({"input_ids": self.ids[None]}, vocab)[0][0])

    def inside(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Prompts `[batch, prompt]`, padded on the left, with the condition, and their mask: `[batch, prompt + n]`.
        Refuses prompts with fewer units than stay in front.
        """
        pads, more = prompt.padding(mask), len(self)
        shortest = ids.shape[1] - int(pads.max())
        if shortest < self.behind:
            raise ValueError(
                f"a prompt of {shortest} units has no place for a condition behind its first {self.behind}"
            )
        order = torch.arange(ids.shape[1] + more, device=ids.device)
        at = order - (pads + self.behind)[:, None]  # the place in the condition
        own = torch.where(at < 0, order, order - more).clamp(min=0)
        given = self.ids.to(ids.device)[at.clamp(0, more - 1)]
        whole = torch.where((at >= 0) & (at < more), given, ids.gather(1, own))
        return whole, (order >= pads[:, None]).long()

    def outside(self, states: Tensor, mask: Tensor) -> Tensor:
        """States of prompts with the condition, `[batch, prompt + n, width]`, without those of the condition."""
        order = torch.arange(mask.shape[1], device=states.device)
        place = (prompt.padding(mask) + self.behind).to(states.device)[:, None]
        column = torch.where(order < place, order, order + len(self))
        return states.gather(1, column[..., None].expand(-1, -1, states.shape[-1]))


@runtime_checkable
class TakesCondition(Protocol):
    """A target that reads a condition inside of its prompts."""

    def with_condition(self, condition: Condition | None) -> Target:
        """This target behind a condition, which takes the place of the one that it has; None: behind none."""


def begun_behind(condition: Condition, vocab: int, inputs: Any, begin: Callable[[Any], Prefill]) -> Prefill:
    """Prefill a prompt of a target of `vocab` ids with a condition inside; `begin` prefills the prompt that holds it;
    refuses inputs beside ids and padding.
    """
    given = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
    ids, mask = prompt.read(given, vocab)
    if given.get(NULL_INPUTS) is not None or not prefill.is_plain(given, mask):
        raise ValueError(
            "a condition stands inside a prompt of ids and padding alone: leave out earlier turns (past_key_values), "
            "embeddings, pictures, positions and guidance"
        )
    whole, columns = condition.inside(ids, mask)
    started = begin({"input_ids": whole, "attention_mask": columns})
    hidden = None if started.hidden is None else condition.outside(started.hidden, mask)
    return replace(started, prompt=ids, pads=prompt.padding(mask), hidden=hidden)
