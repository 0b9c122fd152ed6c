"""Back-off n-grams of the text so far (Katz, 1987, without the discounting: only the likeliest unit is wanted).

On the host, one table a row, read on as the text grows. Drafts are point masses: exact under every rule that takes
chains. Knobs: a larger `order` prefers longer agreement; a larger `least` drafts less.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from pydantic import Field

from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec_backoff.plugin import BACKOFF
from mmspec_backoff.table import Table


@dataclass(frozen=True)
class BackoffOptions:
    """Options of `backoff`."""

    order: Annotated[int, Field(ge=1, le=8)] = field(default=3, metadata={"help": "longest n-gram"})
    least: Annotated[int, Field(ge=1)] = field(default=1, metadata={"help": "how often it must have been seen"})


class Backoff:
    """Drafts by tables, one a row.

    Args:
        options: Lengths and counts.
    """

    needs, offers = BACKOFF.needs, BACKOFF.offers
    example = "mmspec_backoff.examples:backoff"

    def __init__(self, options: BackoffOptions = BackoffOptions()) -> None:
        self.options = options

    def bind(self, target: Target) -> None:
        """Fits every discrete target."""

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> list[Table]:
        return [Table(self.options.order, self.options.least) for _ in range(state.rows)]

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        history, pads = state.history.tolist(), state.host.pads
        texts = [row[p : state.prompt_length + n] for row, p, n in zip(history, pads, state.host.emitted, strict=True)]
        for table, text in zip(state.memory, texts, strict=True):
            table.learn(text)
        drafts = [table.follow(text, k) for table, text in zip(state.memory, texts, strict=True)]
        width = max(map(len, drafts))
        units = torch.tensor([d + [0] * (width - len(d)) for d in drafts], device=state.root.device).long()
        lengths = torch.tensor([len(d) for d in drafts], device=state.root.device)
        valid = torch.arange(width, device=lengths.device) < lengths[:, None]
        return Draft.chain(units.reshape(state.rows, width), valid=valid)

    def observe(self, state: State, step: Step) -> None:
        """Nothing yet: the host learns of a round when the next one begins."""
