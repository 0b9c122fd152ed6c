"""The slot cache and the tree pass, against transformers' own cache and passes over one path at a time."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from mmspec.core.types import Draft
from mmspec.hosts import prefill
from mmspec.hosts.buffer_cache import BufferCache
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.target import TransformersTarget

VOCAB = 131
TREE = [-1, -1, -1, 0, 0, 1, 3, 3]


@torch.no_grad()
def fresh(model: Any, ids: list[int]) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Transformers alone over a row: logits `[length, vocab]`; keys and values `[heads, length, width]` by layer."""
    out = model(torch.tensor([ids]), use_cache=True)
    return out.logits[0], [(layer.keys[0], layer.values[0]) for layer in out.past_key_values.layers]


def test_buffers_take_what_they_have_room_for() -> None:
    """A head's cache has room for a whole chunk of a prompt, which captured drafts do not need."""
    call = SlotCache([DynamicLayer()], 1, 256, torch.device("cpu"), fixed=True)
    call.open(0, 5)
    states = torch.randn(1, 2, 5, 4)
    call.update(states, -states, 0)
    call.commit(torch.arange(1, 5)[None], torch.tensor([5]))
    (layer,) = BufferCache([DynamicLayer()], call, 128).load(call).owning
    assert call.capacity == 256 and layer.keys.shape[2] == 128
    assert torch.equal(layer.keys[:, :, :5], states) and torch.equal(layer.values[:, :, :5], -states)


def rooted(units: Tensor, parents: Any, root: Tensor) -> Draft:
    return Draft.tree(units, parents).rooted(root, torch.full((len(root),), 99))


def rows_of(inputs: dict[str, Tensor]) -> list[list[int]]:
    return [
        [i for i, kept in zip(*pair, strict=True) if kept]
        for pair in zip(inputs["input_ids"].tolist(), inputs["attention_mask"].tolist(), strict=True)
    ]


def path_of(parents: list[int], node: int) -> list[int]:
    """Drafted nodes from the root (exclusive) to `node`."""
    return [] if node < 0 else [*path_of(parents, parents[node]), node]


def close(ours: Tensor, right: Tensor, tolerance: float = 1e-5) -> bool:
    return float((ours - right).abs().max() / right.abs().max().clamp(min=1)) <= tolerance


def test_a_node_is_scored_as_its_path_alone(target: Any, prompts: Callable) -> None:
    adapter, inputs = TransformersTarget(target), prompts(3)
    cache = adapter.start(inputs, 20, 9).cache
    root, units = torch.randint(VOCAB, (3,)), torch.randint(VOCAB, (3, len(TREE)))
    logits = adapter.verify(cache, rooted(units, TREE, root)).logits
    for row, prompt in enumerate(rows_of(inputs)):
        for node in range(-1, len(TREE)):
            path = [int(units[row, i]) for i in path_of(TREE, node)]
            assert close(logits[row, node + 1], fresh(target, [*prompt, int(root[row]), *path])[0][-1])


def test_a_node_does_not_change_by_one_bit_when_its_siblings_do(target: Any, prompts: Callable) -> None:
    adapter = TransformersTarget(target)
    cache = adapter.start(prompts(3), 20, 9).cache
    root, units = torch.randint(VOCAB, (3,)), torch.randint(VOCAB, (3, len(TREE)))
    before = adapter.verify(cache, rooted(units, TREE, root)).logits
    for node in range(-1, len(TREE)):
        above = path_of(TREE, node)
        others = [i for i in range(len(TREE)) if i not in above]
        changed = units.clone()
        changed[:, others] = (units[:, others] + torch.randint(1, VOCAB, (3, len(others)))) % VOCAB
        after = adapter.verify(cache, rooted(changed, TREE, root)).logits
        assert torch.equal(after[:, node + 1], before[:, node + 1])
        assert all(not torch.equal(after[:, i + 1], before[:, i + 1]) for i in others)


def random_draft(rng: random.Random, root: Tensor) -> tuple[Draft, list[list[int]]]:
    """Nothing, a chain, a tree that all rows share, or a tree a row; and every row's parents."""
    kind, k = rng.choice(["nothing", "chain", "tree", "trees"]), rng.randint(2, 6)
    if kind == "nothing":
        return Draft.empty(root).rooted(root, torch.full((3,), 99)), [[]] * 3
    units = torch.randint(VOCAB, (3, k))
    if kind == "trees":
        parents = [[rng.randint(-1, i - 1) for i in range(k)] for _ in range(3)]
        return rooted(units, torch.tensor(parents), root), parents
    shared = [i - 1 if kind == "chain" else rng.randint(-1, i - 1) for i in range(k)]
    return rooted(units, shared, root), [shared] * 3


def test_200_commits_leave_what_a_fresh_prefill_would(target: Any, prompts: Callable) -> None:
    torch.manual_seed(0)
    adapter, inputs, rng = TransformersTarget(target), prompts(3), random.Random(0)
    cache, rows = adapter.start(inputs, 900, 8).cache, rows_of(inputs)
    kinds = set()
    for _ in range(200):
        root = torch.randint(VOCAB, (3,))
        draft, parents = random_draft(rng, root)
        adapter.verify(cache, draft)
        paths = [path_of(p, rng.randint(-1, len(p) - 1)) for p in parents]
        count = [rng.choice([0, 1, len(path) + 1, rng.randint(0, len(path) + 1)]) for path in paths]
        deep = draft.index.deepest
        padded = torch.tensor([[n + 1 for n in path] + [-1] * (deep - len(path)) for path in paths])
        adapter.commit(cache, padded.reshape(3, deep), torch.tensor(count))
        for b, path in enumerate(paths):
            kept = [int(root[b]), *(int(draft.units[b, n + 1]) for n in path)]
            rows[b] += kept[: count[b]]
        kinds |= {(draft.nodes > 1, min(c, 2)) for c in count}
    assert kinds == {(True, 0), (True, 1), (True, 2), (False, 0), (False, 1)} and len({*map(len, rows)}) == 3
    assert cache.slots.length.tolist() == [len(row) for row in rows]
    root = torch.randint(VOCAB, (3,))
    logits = adapter.verify(cache, Draft.empty(root).rooted(root, torch.zeros(3))).logits
    for b, row in enumerate(rows):
        right, slots = fresh(target, [*row, int(root[b])])
        assert close(logits[b, 0], right[-1])
        for layer, (keys, values) in zip(cache.slots.layers, slots, strict=True):
            assert close(layer.keys[b, :, : len(row)], keys[:, :-1])
            assert close(layer.values[b, :, : len(row)], values[:, :-1])


def test_a_finished_row_stays_as_it_is(target: Any, prompts: Callable) -> None:
    adapter = TransformersTarget(target)
    cache = adapter.start(prompts(3), 20, 9).cache
    held = [layer.keys[1, :, :5].clone() for layer in cache.slots.layers]
    for _ in range(3):
        draft = rooted(torch.randint(VOCAB, (3, len(TREE))), TREE, torch.randint(VOCAB, (3,)))
        adapter.verify(cache, draft)
        adapter.commit(cache, torch.tensor([[1, 4, 7]] * 3), torch.tensor([4, 0, 2]))
    assert cache.slots.length.tolist() == [14 + 12, 5, 11 + 6]
    assert all(torch.equal(layer.keys[1, :, :5], keys) for layer, keys in zip(cache.slots.layers, held, strict=True))


def test_truncate_forgets(target: Any, prompts: Callable) -> None:
    adapter, inputs = TransformersTarget(target), prompts(3)
    cache, rows = adapter.start(inputs, 20, 9).cache, rows_of(inputs)
    draft = rooted(torch.randint(VOCAB, (3, 4)), [-1, 0, 1, 2], torch.randint(VOCAB, (3,)))
    adapter.verify(cache, draft)
    adapter.commit(cache, torch.tensor([[1, 2, 3, 4]] * 3), torch.tensor([5, 5, 5]))
    keep = [16, 3, 11]  # into the draft, into the prompt, exactly the prompt
    adapter.truncate(cache, torch.tensor(keep))
    root = torch.randint(VOCAB, (3,))
    logits = adapter.verify(cache, Draft.empty(root).rooted(root, torch.zeros(3))).logits
    for b, row in enumerate(rows):
        known = (row + draft.units[b].tolist())[: keep[b]]
        assert close(logits[b, 0], fresh(target, [*known, int(root[b])])[0][-1])


@pytest.mark.parametrize("chunk", [1, 4, 5, 14, 512])
def test_a_prefill_in_chunks_is_the_prefill_of_every_row_alone(
    target: Any, prompts: Callable, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(prefill, "CHUNK", chunk)
    adapter, inputs = TransformersTarget(target), prompts(3)
    started = adapter.start(inputs, 5, 1)
    assert started.pads.tolist() == [0, 9, 3] and started.cache.slots.length.tolist() == [14, 5, 11]
    for b, row in enumerate(rows_of(inputs)):
        right, slots = fresh(target, row)
        assert close(started.output.logits[b, 0], right[-1])
        for layer, (keys, values) in zip(started.cache.slots.layers, slots, strict=True):
            assert close(layer.keys[b, :, : len(row)], keys) and close(layer.values[b, :, : len(row)], values)


def test_a_pass_changes_neither_the_model_nor_what_transformers_does(target: Any, prompts: Callable) -> None:
    before, settings = target(**prompts(3)).logits, target.config.to_dict()
    attention = target.config._attn_implementation
    TransformersTarget(target).start(prompts(3), 5, 1)
    assert torch.equal(target(**prompts(3)).logits, before)
    assert target.config.to_dict() == settings and target.config._attn_implementation == attention
