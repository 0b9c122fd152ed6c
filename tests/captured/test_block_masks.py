"""Masks that are evaluated where they are needed have the entries of those that are made, and attention agrees."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention as torchs
from torch.nn.attention.flex_attention import BlockMask
from transformers.masking_utils import (
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from mmspec.core.tree import TreeIndex
from mmspec.hosts import flex_attention
from mmspec.hosts.attention import packed_attention
from mmspec.hosts.flex_attention import ancestor_words, block_attention, tree_blocks
from mmspec.hosts.masks import PassGeometry, current, latest_slot, tree_mask

SLOTS = 128


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """FlexAttention computes all scores, in torch's own operations."""
    monkeypatch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    yield


def all_trees(nodes: int) -> list[list[int]]:
    trees = [[-1]]
    for node in range(1, nodes):
        trees = [[*tree, parent] for tree in trees for parent in range(node)]
    return trees


def geometry(index: TreeIndex, length: Tensor, slots: int = SLOTS, **more: Any) -> PassGeometry:
    return PassGeometry(length, index.ancestor, index.depth, slots, **more)


def holes_of(length: Tensor, slots: int = SLOTS) -> Tensor:
    """Some committed slots that no node may see, never the last one."""
    holes = torch.rand(len(length), slots, generator=torch.Generator().manual_seed(1)) < 0.3
    return holes & (torch.arange(slots) < length[:, None] - 1)


def made_and_evaluated(at: PassGeometry, pattern: Callable[..., Tensor], window: int | None) -> tuple[Tensor, Tensor]:
    """The mask of `masks.py`, and the one of `flex_attention.py` evaluated in the blocks that it names."""
    with current.holding(at):
        made, blocks = tree_mask(pattern, window), tree_blocks(pattern, window)
    assert made is not None
    rows, _, nodes, places = made.shape
    row, node, place = torch.arange(rows)[:, None, None], torch.arange(nodes)[:, None], torch.arange(places)
    entries = blocks.mask_mod(*torch.broadcast_tensors(row, torch.zeros_like(row), node, place))
    assert blocks.seq_lengths == (nodes, places)
    read = torch.zeros(rows, -(-places // blocks.BLOCK_SIZE[1]), dtype=torch.bool)
    for each, count, order in zip(read, blocks.kv_num_blocks[:, 0, 0], blocks.kv_indices[:, 0, 0], strict=True):
        each[order[:count].long()] = True
    covered = read.repeat_interleave(blocks.BLOCK_SIZE[1], 1)[:, :places]
    return made[:, 0], entries & covered[:, None]


PATTERNS = {
    "full": (causal_mask_function, None),
    "window": (sliding_window_causal_mask_function(5), 5),
    "chunks": (chunked_causal_mask_function(6, torch.zeros(3, dtype=torch.int64)), 6),
}


@pytest.mark.parametrize("holes", [False, True], ids=["", "holes"])
@pytest.mark.parametrize("ring", [0, 64], ids=["", "ring"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_entry_of_every_small_tree(pattern: str, ring: int, holes: bool) -> None:
    function, window = PATTERNS[pattern]
    rings = {} if window is None or not ring else {window: ring}
    for tree in all_trees(5):
        for length in ([1, 63, 64], [59, 60, 61], [120, 123, 7]):
            rows = torch.tensor(length)
            at = geometry(TreeIndex.static(tree), rows, holes=holes_of(rows) if holes else None, rings=rings)
            made, evaluated = made_and_evaluated(at, function, window)
            assert torch.equal(made, evaluated), (tree, length)


@pytest.mark.parametrize("nodes", [63, 64, 65, 130])
def test_a_tree_of_every_row_and_of_more_than_a_word(nodes: int) -> None:
    rng = random.Random(nodes)
    parents = torch.tensor([[-1] + [rng.randrange(max(0, i - 9), i) for i in range(1, nodes)] for _ in range(3)])
    at = geometry(TreeIndex.dynamic(parents), torch.tensor([3, 100, 190]), 320)
    for function, window in PATTERNS.values():
        made, evaluated = made_and_evaluated(at, function, window)
        assert torch.equal(made, evaluated)


def attended(at: PassGeometry, pattern: str, q: Tensor, k: Tensor, v: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
    """Attention under a mask that is made, and under one that is evaluated: `[batch, node, heads, width]` each."""
    function, window = PATTERNS[pattern]
    with current.holding(at):
        expected = packed_attention(nn.Module(), q, k, v, tree_mask(function, window), **more)[0]
        found = block_attention(nn.Module(), q, k, v, tree_blocks(function, window), **more)[0]
    return expected, found


def states(heads: int, key_heads: int, nodes: int, dtype: torch.dtype, slots: int = SLOTS) -> list[Tensor]:
    """Queries four times as long as usual, so that scores differ and single slots matter."""
    made = torch.Generator().manual_seed(0)
    shapes = [(heads, nodes, 4.0), (key_heads, slots, 1.0), (key_heads, slots, 1.0)]
    return [(scale * torch.randn(3, h, n, 16, generator=made)).to(dtype) for h, n, scale in shapes]


TREE = TreeIndex.static([-1, 0, 0, 1, 1, 2, 5])
LENGTH = torch.tensor([40, 17, 118])


def apart(expected: Tensor, found: Tensor) -> float:
    return float((expected - found).abs().max() / expected.abs().max())


@pytest.mark.thinned
@pytest.mark.parametrize("more", [{}, {"scaling": 0.4, "softcap": 3.0}, {"s_aux": torch.arange(4) - 1.5}], ids=str)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str)
@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_attention(pattern: str, key_heads: int, dtype: torch.dtype, bound: float, more: dict[str, Any]) -> None:
    at = geometry(TREE, LENGTH, holes=holes_of(LENGTH))
    expected, found = attended(at, pattern, *states(4, key_heads, TREE.nodes, dtype), **more)
    assert found.dtype == dtype and found.shape == expected.shape and apart(expected, found) < bound


def test_what_the_mask_does_not_hold_is_refused() -> None:
    at, (q, k, v) = geometry(TREE, LENGTH), states(4, 2, TREE.nodes, torch.float32)
    with pytest.raises(ValueError, match="position_bias"):
        attended(at, "full", q, k, v, position_bias=torch.ones(1))
    with pytest.raises(ValueError, match="a missing mask"):
        block_attention(nn.Module(), q, k, v, at.tree)  # type: ignore[arg-type]


def one_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    right = flex_attention.seen
    monkeypatch.setattr(flex_attention, "seen", lambda at, pattern: right(replace(at, length=at.length + 1), pattern))


def the_next_nodes_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_attention, "ancestor_words", lambda ancestor: ancestor_words(ancestor.roll(1, 2)))


def no_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    right = flex_attention.seen
    monkeypatch.setattr(flex_attention, "seen", lambda at, pattern: right(replace(at, holes=None), pattern))


def a_block_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    right = flex_attention._blocks
    monkeypatch.setattr(flex_attention, "_blocks", lambda used, *rest: right(used - TREE.nodes, *rest))


def the_first_slot_of_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_attention, "latest_slot", lambda place, last, ring: latest_slot(place, last - 1, ring))


@pytest.mark.parametrize(
    "mutate", [one_longer, the_next_nodes_bit, no_holes, a_block_too_few, the_first_slot_of_a_place]
)
def test_mutants_are_found(mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    length = torch.tensor([60, 17, 118])  # of the first row, the nodes lie in two blocks
    at = geometry(TREE, length, 192, holes=holes_of(length, 192), rings={5: 64})
    mutate(monkeypatch)
    pairs = [made_and_evaluated(at, *PATTERNS[pattern]) for pattern in ("full", "window")]
    assert not all(torch.equal(made, evaluated) for made, evaluated in pairs)


def test_no_mask_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pass holds grows with rows × nodes and rows × blocks, not with nodes × slots."""
    at = geometry(TREE, LENGTH, 4096)
    with current.holding(at):
        blocks = tree_blocks(causal_mask_function)
    assert isinstance(blocks, BlockMask) and "tree" not in vars(at)
    lists = (blocks.kv_num_blocks, blocks.kv_indices, blocks.full_kv_num_blocks, blocks.full_kv_indices)
    assert sum(each.numel() for each in lists if each is not None) <= 2 * len(LENGTH) * (4096 // 128 + 1)
    assert int(blocks.kv_num_blocks.max()) == 1, "blocks behind the rows are not read"
