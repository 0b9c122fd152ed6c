"""Prompt lookup: copy what followed the most recent occurrence of the latest n-gram.

Saxena's prompt lookup decoding and LLMA (arXiv 2304.04487), batched and on the device: every row is compared with its
own tail at all positions at once; the longest matching n-gram wins, the most recent one among equals. A copy that
reaches the end of the text continues periodically, so that a loop is drafted in full.
Drafts are point masses. Knobs: a larger `max_ngram` prefers longer agreement; a larger `min_ngram` drafts less often.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmspec.core.compile.protocols import DraftsOfRows
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.registry.options import option
from mmspec_text.specs import PROMPT_LOOKUP


@dataclass(frozen=True)
class PromptLookupOptions:
    """Options of `prompt-lookup`."""

    max_ngram: Annotated[int, Field(ge=1, le=32)] = option(3, "longest n-gram that is looked for")
    min_ngram: Annotated[int, Field(ge=1, le=32)] = option(2, "shortest n-gram that is enough to draft")

    def __post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram ({self.min_ngram}) must not exceed max_ngram ({self.max_ngram})")


class PromptLookup:
    """Copies drafts from the row's own history."""

    needs, offers = PROMPT_LOOKUP.needs, PROMPT_LOOKUP.offers
    everywhere = False

    def __init__(self, options: PromptLookupOptions = PromptLookupOptions()) -> None:
        self.options = options

    def bind(self, target: Target) -> None:
        """Accept every discrete target."""

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> Any:
        return None

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        seen = state.prompt_length + max(state.host.emitted)
        units, found = copied(self.options, state.history[:, :seen], state.known - 1, state.pads, k)
        return Draft.chain(units, valid=found)

    def observe(self, state: State, step: Step) -> None:
        """Do nothing: drafts depend on the history alone."""

    def of_texts(self) -> "LookupOfTexts":
        return LookupOfTexts(self.options)

    def inside(self, k: int, state: State) -> DraftsOfRows:
        def draft(live: Live) -> Draft:
            units, found = copied(self.options, live.history, live.known - 1, live.pads, k)
            return Draft.chain(units, valid=found)

        return DraftsOfRows(range(-1, k - 1), draft, self.options)

    def fits_inside(self, state: State) -> bool:
        return True


class LookupOfTexts:
    """`PromptLookup` as a `HostDrafter`."""

    def __init__(self, options: PromptLookupOptions) -> None:
        self.options = options

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        texts = [torch.tensor(text) for text in tokens]
        last = torch.tensor([len(text) - 1 for text in tokens])
        units, found = copied(self.options, pad_sequence(texts, batch_first=True), last, torch.zeros_like(last), k)
        return [row if there[0] else [] for row, there in zip(units.tolist(), found.tolist(), strict=True)]


def copied(options: PromptLookupOptions, history: Tensor, last: Tensor, pads: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k units that followed the best match, and whether there is one: `[batch, k]` each.

    `last [batch]` is the column of the root, behind which `history [batch, column]` may hold anything; `pads [batch]`
    counts columns of padding.
    """
    columns = history.shape[1]
    matched = _matched(options.max_ngram, history, last, pads)
    order = torch.arange(columns, device=history.device)
    best = (matched * columns + order).argmax(1)  # longest first, most recent among equals
    found = matched.gather(1, best[:, None]) >= options.min_ngram
    period = (last - best).clamp(min=1)[:, None]
    source = best[:, None] + 1 + torch.arange(k, device=history.device) % period
    return history.gather(1, source.clamp(max=columns - 1)), found.expand(-1, k)


def _matched(most: int, history: Tensor, last: Tensor, pads: Tensor) -> Tensor:
    """The number of units up to every position that equal the end of the text: `[batch, column]` int64, 0 … `most`."""
    order = torch.arange(history.shape[1], device=history.device)
    run = (order < last[:, None]) & (order >= pads[:, None])
    length = torch.zeros_like(history)
    for back in range(most):
        tail = history.gather(1, (last - back).clamp(min=0)[:, None])
        shifted = torch.roll(history, back, 1)
        run = run & (shifted == tail) & (order - back >= pads[:, None])
        length += run
    return length
