"""Logits processors that read the history: every node of a draft gets its own, the known units and the path to it."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.processors import knows_rows
from mmspec.core.transfer import on_device
from mmspec.core.types import Draft


class Processor(Protocol):
    """transformers' `LogitsProcessor`."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores `[rows, vocab]` after `input_ids [rows, length]`."""


@dataclass(frozen=True)
class Prefix:
    """The known units of every row, which a path through the draft continues."""

    history: Tensor  # `[batch, capacity]` ids
    known: Sequence[int]  # number of known ids of each row, the root included, on the host
    emitted: Tensor  # `[batch]` int64: number of emitted ids among them, on the device


def with_histories(processor: Processor, logits: Tensor, draft: Draft, prefix: Prefix, nodes: slice) -> Tensor:
    """Run a processor, a pure function of ids and scores, on every node with its own history.

    The logits are those of the rooted draft's nodes `nodes`: `[batch, node, vocab]`.
    """
    run = _row_by_row if knows_rows(processor) else _length_by_length
    return run(processor, logits, draft, prefix, nodes)


def _length_by_length(processor: Processor, logits: Tensor, draft: Draft, prefix: Prefix, nodes: slice) -> Tensor:
    """One call per history length, with all nodes that have one of that length.

    Where only the device knows the tree, every call has all nodes, and the results of the others are dropped: the host
    would have to wait for the depths.
    """
    device, index, listed = logits.device, draft.index, range(draft.nodes)[nodes]
    every = [(b, i) for b in range(len(logits)) for i in range(len(listed))]
    depths = _depths_on_host(draft, len(logits))
    histories = _Histories(draft, prefix, nodes)
    length_of = histories.known[:, None] + index.depth[:, nodes]
    result = logits.clone()
    for length in range(min(prefix.known), max(prefix.known) + index.deepest + 1):
        members = every
        if depths is not None:
            members = [(b, i) for b, i in every if prefix.known[b] + depths[b][listed[i]] == length]
        if not members:
            continue
        row, node = on_device(members, device).unbind(1)
        scores = processor(histories.ids(row, node, length), logits[row, node])
        if depths is None:
            scores = torch.where((length_of[row, node] == length)[:, None], scores, result[row, node])
        result[row, node] = scores
    return result


def _row_by_row(processor: Processor, logits: Tensor, draft: Draft, prefix: Prefix, nodes: slice) -> Tensor:
    """One call per history length and sibling of that length.

    A processor may identify rows by their index in the batch (for its padding, or its constraint). So every call has
    all rows in order; rows without a node of that length repeat another node, and that result is dropped.
    """
    rows, listed, device = len(logits), range(draft.nodes)[nodes], logits.device
    depths = _depths_on_host(draft, rows) or draft.index.depth.expand(rows, -1).tolist()
    calls: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for b in range(rows):
        siblings: Counter[int] = Counter()
        for i, node in enumerate(listed):
            length = prefix.known[b] + depths[b][node]
            calls[length, siblings[length]][b] = i
            siblings[length] += 1
    histories = _Histories(draft, prefix, nodes)
    result, every = torch.empty_like(logits), torch.arange(rows, device=logits.device)
    for (length, _), members in sorted(calls.items(), key=lambda call: call[0]):  # parents before children
        nodes_of = on_device([members.get(b, 0) for b in range(rows)], device)
        scores = processor(histories.ids(every, nodes_of, length), logits[every, nodes_of])
        row_index, node_index = on_device(list(members.items()), device).unbind(1)
        result[row_index, node_index] = scores[row_index]
    return result


class _Histories:
    """The ids before every node of a draft."""

    def __init__(self, draft: Draft, prefix: Prefix, nodes: slice) -> None:
        self.known = on_device(prefix.known, draft.units.device)
        self._history = prefix.history
        self._paths = _units_of_paths(draft)[:, nodes]

    def ids(self, row: Tensor, node: Tensor, length: int) -> Tensor:
        """Known units of rows `row [n]`, then the paths to `node [n]`: `[n, length]`; arbitrary behind their end."""
        place, known = torch.arange(length, device=row.device), self.known[row, None]
        path = self._paths[row, node].gather(1, (place - known).clamp(0, self._paths.shape[2] - 1))
        inside = place.clamp(max=self._history.shape[1] - 1)  # refused nodes may be deeper than there is room
        return torch.where(place < known, self._history[row][:, inside], path)


def _depths_on_host(draft: Draft, rows: int) -> list[list[int]] | None:
    """Every node's depth `[batch][node]`; None where reading it would be a wait."""
    parents = draft.index.listed
    if parents is not None:
        depths = list[int]()
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return [depths] * rows
    if draft.index.depth.device.type == "cpu":
        found: list[list[int]] = draft.index.depth.expand(rows, -1).tolist()
        return found
    return None


def _units_of_paths(draft: Draft) -> Tensor:
    """The units on the path to every node, the root's excluded: `[batch, node, deepest]`; behind its end arbitrary."""
    index, (rows, nodes) = draft.index, draft.units.shape
    column = torch.where(index.ancestor & (index.depth > 0)[:, None], index.depth[:, None] - 1, index.deepest)
    each = torch.arange(nodes, device=draft.units.device).expand_as(column)
    at = torch.zeros(*column.shape[:2], index.deepest + 1, dtype=torch.int64, device=each.device)
    at = at.scatter_(2, column.clamp(max=index.deepest), each)[..., : max(index.deepest, 1)]
    return draft.units.gather(1, at.expand(rows, -1, -1).flatten(1)).reshape(rows, nodes, -1)
