"""A head's memory of a call, whatever it computes: its cache, and features that it has not read yet.

Features of the prompt and of every accepted unit come from the target's own passes. Before a draft the head reads those
that it has not read yet; then the draft grows level by level, as a draft model's does (`mmspec.core.drafters.growing`).
"""

from dataclasses import dataclass

import torch

from mmspec.core.distributions import take_nodes
from mmspec.core.state import State
from mmspec.core.types import Step, TargetOutput
from mmspec_text.drafters.heads.cache import CHUNK, Feed, HeadCache
from mmspec_text.drafters.heads.head import Head
from mmspec_text.drafters.heads.rows import Rows


@dataclass
class HeadMemory:
    """A head's memory of a call."""

    cache: HeadCache
    unread: Rows | None  # features that it has not read yet; None after a draft
    columns: slice  # which of the target's states they are

    def opened(self, state: State) -> tuple[TargetOutput, Feed]:
        """The beginning of the next draft, as `HeadCache.opened` says."""
        self.read(state)
        self.cache.slots.synced([*state.host.emitted] * self.cache.halves)
        return self.cache.opened(state.root)

    def observe(self, state: State, step: Step) -> None:
        """Take the features of the units that a round emitted."""
        self.unread = with_emitted(self.unread, step, self.columns)
        if self.unread.features.shape[1] >= CHUNK:  # many rounds without a draft
            self.read(state)

    def read(self, state: State) -> None:
        """Let the head read what it has not read yet."""
        if self.unread is not None:
            self.cache.catch_up(self.unread, state)
            self.unread = None

    def rest(self, state: State, columns: int) -> Rows:
        """Let the head read what it has not read yet, but for the last `columns` columns, which are returned."""
        rows = self.unread
        assert rows is not None
        first = rows.features.shape[1] - columns
        if first > 0:
            early = Rows(rows.features[:, :first], (rows.count - columns).clamp(min=0))
            self.cache.read(early, rows.units(state)[:, :first])
            self.unread = rows = Rows(rows.features[:, first:], rows.count.clamp(max=columns))
        return rows


def begun(
    head: Head,
    state: State,
    fed: int,
    columns: slice = slice(None),
    before: int = 0,
    width: int | None = None,
    kind: type[HeadCache] = HeadCache,
) -> HeadMemory:
    """Begin a call, with a cache of a kind.

    `fed` counts the nodes of one draft that the head is fed, the root not counted. `columns` of the features are the
    head's. `before` counts the positions of a condition in front of the first unit, as in `Lent`; they are rows with
    unit 0. `width` counts the numbers of a feature; twice as many are both halves under guidance.
    """
    unread = of_prompt(state, columns, before)
    most = before + state.prompt_length + state.limit + fed + 2
    halves = 1 if width is None else unread.features.shape[-1] // width
    cache = kind(head, state.rows, most, state.root.device, halves)
    cache.slots.begun = unread.count.tolist() * halves
    return HeadMemory(cache, unread, columns)


def of_prompt(state: State, columns: slice = slice(None), before: int = 0) -> Rows:
    """The features of a prompt; arguments and errors as in `begun`."""
    if state.hidden is None:
        raise ValueError("the target returned no hidden states of the prompt, from which the head would draft")
    # A prompt of embeddings alone has no ids: its last feature and the first new unit are the first row then.
    known = (before + state.prompt_length - state.pads).clamp(min=1)
    return Rows(state.hidden[..., columns], known.clamp(max=state.hidden.shape[1])).trimmed()


def with_emitted(unread: Rows | None, step: Step, columns: slice = slice(None)) -> Rows:
    """`unread` features, and then the target's of the units that a round emitted; `columns` as in `begun`."""
    new = emitted_rows(step, columns).trimmed()
    return new if unread is None else unread.followed(new)


def emitted_rows(step: Step, columns: slice = slice(None)) -> Rows:
    """The target's features of the units that a round emitted; `columns` as in `begun`."""
    hidden = step.scores.hidden
    assert hidden is not None, "the target returns hidden states in every round of such a call"
    nodes = torch.nn.functional.pad(step.verdict.path.clamp(min=0), (1, 0))  # the root first
    return Rows.at_left(take_nodes(hidden[..., columns], nodes), step.count)
