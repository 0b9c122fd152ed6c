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
        ...


@dataclass(frozen=True)
class Prefix:
    """The known units of every row, which a path through the draft continues.

    Attributes:
        history: `[batch, capacity]` ids.
        known: Number of known ids of each row, the root included, on the host.
        emitted: `[batch]` int64: number of emitted ids among them, on the device.
    """

    history: Tensor
    known: Sequence[int]
    emitted: Tensor


def with_histories(processor: Processor, logits: Tensor, draft: Draft, prefix: Prefix, nodes: slice) -> Tensor:
    """Run a processor on every node with its own history.

    Args:
        processor: A pure function of ids and scores.
        logits: `[batch, node, vocab]` of the nodes in `nodes`.
        draft: The rooted draft.
        prefix: The known units.
        nodes: Which of the draft's nodes have logits.
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
    known = on_device(prefix.known, device)
    length_of = known[:, None] + index.depth[:, nodes]
    paths = _units_of_paths(draft)[:, nodes]
    result = logits.clone()
    for length in range(min(prefix.known), max(prefix.known) + index.deepest + 1):
        members = (
            every if depths is None else [(b, i) for b, i in every if prefix.known[b] + depths[b][listed[i]] == length]
        )
        if not members:
            continue
        row, node = on_device(members, device).unbind(1)
        place = torch.arange(length, device=device)
        beyond = (place - known[row, None]).clamp(0, paths.shape[2] - 1)
        inside = place.clamp(max=prefix.history.shape[1] - 1)  # refused nodes may be deeper than there is room
        ids = torch.where(place < known[row, None], prefix.history[row][:, inside], paths[row, node].gather(1, beyond))
        scores = processor(ids, logits[row, node])
        if depths is None:
            scores = torch.where((length_of[row, node] == length)[:, None], scores, result[row, node])
        result[row, node] = scores
    return result


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


def _row_by_row(processor: Processor, logits: Tensor, draft: Draft, prefix: Prefix, nodes: slice) -> Tensor:
    """One call per history length and sibling of that length.

    A processor may identify rows by their index in the batch (for its padding, or its constraint). So every call has
    all rows in order; rows without a node of that length repeat another node, and that result is dropped.
    """
    rows = len(logits)
    listed = range(draft.nodes)[nodes]
    depths = draft.index.depth.expand(rows, -1).tolist()
    calls: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for b in range(rows):
        siblings: Counter[int] = Counter()
        for i, node in enumerate(listed):
            length = prefix.known[b] + depths[b][node]
            calls[length, siblings[length]][b] = i
            siblings[length] += 1
    result = torch.empty_like(logits)
    every = torch.arange(rows, device=logits.device)
    for (length, _), members in calls.items():
        nodes_of = [members.get(b, 0) for b in range(rows)]
        ids = torch.stack([_ids(draft, prefix, b, listed[i], length) for b, i in enumerate(nodes_of)])
        scores = processor(ids, logits[every, torch.tensor(nodes_of, device=logits.device)])
        row_index, node_index = (torch.tensor(m, device=logits.device) for m in (list(members), list(members.values())))
        result[row_index, node_index] = scores[row_index]
    return result


def _ids(draft: Draft, prefix: Prefix, row: int, node: int, length: int) -> Tensor:
    """Known units of a row and the path from the root (exclusive) to a node, cut or padded to `length`."""
    tree_row = row if len(draft.index.ancestor) > 1 else 0
    above = draft.index.ancestor[tree_row, node].clone()
    above[0] = False
    ids = torch.cat([prefix.history[row, : prefix.known[row]], draft.units[row][above]])[:length]
    return torch.nn.functional.pad(ids, (0, length - len(ids)))
