"""Drafting with a recurrent head: what all of them share, whatever they compute.

Features of the prompt and of every accepted unit come from the target's own passes. Before a draft the head reads those
that it has not read yet; then the draft grows level by level, as a draft model's does (`mmspec.core.drafters.growing`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.growing import grown
from mmspec.core.drafters.shapes import Shape
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise
from mmspec.core.state import State
from mmspec.core.types import Draft, Step, TargetOutput
from mmspec_text.drafters.heads.cache import CHUNK, HeadCache
from mmspec_text.drafters.heads.head import Head
from mmspec_text.drafters.heads.rows import Rows


@dataclass
class HeadMemory:
    """What a head keeps of a call."""

    cache: HeadCache
    unread: Rows | None  # features that it has not read yet; None after a draft


def begun(
    head: Head,
    shape: Shape,
    state: State,
    columns: slice = slice(None),
    before: int = 0,
    width: int | None = None,
) -> HeadMemory:
    """Begin a call.

    `columns` of the features are the head's. `before` counts the positions of a condition in front of the first unit,
    as in `Lent`; they are rows with unit 0. `width` counts the numbers of a feature; twice as many are
    both halves under guidance.

    Raises:
        ValueError: The target gave no features of the prompt.
    """
    unread = of_prompt(state, columns, before)
    most = before + state.prompt_length + state.limit + shape.fed(state.budget.k) + 2
    halves = 1 if width is None else unread.features.shape[-1] // width
    cache = HeadCache(head, state.rows, most, state.root.device, halves)
    cache.begin(unread.count.tolist())
    return HeadMemory(cache, unread)


def proposed(memory: HeadMemory, shape: Shape, state: State, k: int, noise: DraftNoise) -> Draft:
    """Draft at most `k` units per path."""
    levels = shape.levels(k)
    if levels < 1:
        return Draft.empty(state.root)
    memory.cache.synced(state.host_emitted)
    output = read(memory, state) if memory.unread is not None else memory.cache.at_root()
    draft, _, _ = grown(shape, state, k, levels, noise, output, feed=memory.cache.grow)
    return draft


def observed(memory: HeadMemory, state: State, step: Step, columns: slice = slice(None)) -> None:
    """Take the features of the units that a round emitted; `columns` as in `begun`."""
    memory.unread = with_emitted(memory.unread, step, columns)
    if memory.unread.features.shape[1] >= CHUNK:  # many rounds without a draft
        read(memory, state)


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


def read(memory: HeadMemory, state: State) -> TargetOutput:
    """Let the head read what it has not read yet; the output at the root, one node."""
    assert memory.unread is not None
    output = memory.cache.append(memory.unread, units_of(state, memory.unread))
    memory.unread = None
    return output


def rest_of(memory: HeadMemory, state: State, columns: int) -> Rows:
    """Let the head read what it has not read yet, but for the last `columns` columns, which are returned."""
    rows = memory.unread
    assert rows is not None
    first = rows.features.shape[1] - columns
    if first > 0:
        early = Rows(rows.features[:, :first], (rows.count - columns).clamp(min=0))
        memory.cache.read(early, units_of(state, rows)[:, :first])
        memory.unread = rows = Rows(rows.features[:, first:], rows.count.clamp(max=columns))
    return rows


def units_of(known: State | Live, rows: Rows) -> Tensor:
    """The units of rows: known ones that end with the root, `[batch, column]`; 0 at positions of a condition."""
    columns = rows.features.shape[1]
    place = known.known[:, None] - columns + torch.arange(columns, device=known.known.device)
    units = take_nodes(known.history, place.clamp(0, known.history.shape[1] - 1))
    return torch.where(place < 0, 0, units)
