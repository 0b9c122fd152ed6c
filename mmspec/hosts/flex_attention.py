"""Attention of captured passes on CUDA, through torch's FlexAttention: it reads live slots only, and makes no mask.

The packed function needs a mask with an entry for every node and slot, and reads all slots that are allocated. The
kernel that torch's compiler makes of this one evaluates the mask inside, of the committed length of every row, and of
the ancestors of every node as bits of 64-bit words; which blocks of slots are read follows from the lengths by
arithmetic. So the work of a pass follows how long its rows are, although no shape depends on it. Without the compiler
FlexAttention computes all scores at once: eager passes go on with the packed function.
Blocks are visited in ascending order, and none is declared to be seen whole: so sums over a row's slots have one order,
whatever the length of the row in the pass that computes them.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from mmspec.core import kernels
from mmspec.hosts.attention import packed_sinks, refuse_unknown
from mmspec.hosts.masks import PassGeometry, current, latest_slot
from mmspec.hosts.passes import Passes
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.slot_layer import BLOCK

FLEX = "mmspec-flex"  # the name of this kind of masks and of its attention function in transformers' interfaces

LEAST_WIDTH = 16  # the least width of a head that the kernel takes

Seen = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""True if a node sees a place: row, head, node, place → bool, all of them 0-d."""

WORD = 64  # bits of a word

TILE = 128  # queries that one block of a mask covers, and places if the layer's places divide by it


def ancestor_words(ancestor: Tensor) -> Tensor:
    """Ancestors `[batch, node, all]` bool as bits: `[batch, node, word]` int64, bit `j % 64` of word `j // 64`."""
    bits = _padded(ancestor).unflatten(2, (-1, WORD)).long()
    return (bits << torch.arange(WORD, device=ancestor.device)).sum(-1)


def _padded(ancestor: Tensor) -> Tensor:
    """Ancestors with columns up to whole words, which are False."""
    return F.pad(ancestor, (0, -ancestor.shape[2] % WORD))


def seen(geometry: PassGeometry, pattern: Callable[..., Tensor]) -> Seen:
    """The entries of `geometry.within(pattern)`, each computed when it is asked for."""
    length, holes, nodes = geometry.length, geometry.holes, geometry.depth.shape[1]
    assert geometry.ancestor.shape[1] == nodes, "a pass over some nodes of a draft"
    # Both are sums over whole words, which torch's compiler stores: it writes out sums of a few terms where they are
    # used, and cannot give a kernel's mask anything that it does not store.
    words, path = ancestor_words(geometry.ancestor), _padded(geometry.ancestor).sum(-1)
    shared = len(words) == 1

    def see(row: Tensor, head: Tensor, node: Tensor, place: Tensor) -> Tensor:
        slot = latest_slot(place, length[row] + nodes - 1, geometry.ring) if geometry.ring else place
        relative = slot - length[row]
        committed = (relative < 0) & (slot >= 0)
        if holes is not None:
            committed = committed & ~holes[row, slot.clamp(0, holes.shape[1] - 1)]
        other = relative.clamp(0, nodes - 1)
        tree_row = torch.zeros_like(row) if shared else row
        word = words[tree_row, node, other // WORD]
        related = ((word >> (other % WORD)) & 1) == 1
        tree = committed | ((relative >= 0) & (relative < nodes) & related)
        if pattern is causal_mask_function:  # ancestors and committed units are earlier positions anyway
            return tree
        # A node's depth is one less than the nodes of its path.
        query = length[row] + path[tree_row, node] - 1
        key = torch.where(relative < 0, slot, length[row] + path[tree_row, other] - 1)
        return tree & pattern(row, head, query, key)

    return see


def tree_blocks(mask_function: Callable[..., Tensor], local_size: int | None = None, **kwargs: Any) -> BlockMask:
    """The mask function that transformers calls for every kind of layer."""
    geometry = current.get()
    assert geometry is not None, f"the attention {FLEX!r} is used outside a pass of mmspec"
    geometry = geometry.around(local_size)
    used = geometry.length + geometry.depth.shape[1]  # around a ring that is full: all of its places
    return _blocks(used, geometry.ancestor.shape[1], geometry.visible, seen(geometry, mask_function))


def packed(mask: BlockMask, group: int) -> BlockMask:
    """A mask for query groups that are packed into the query axis: query `i` is node `i % nodes`."""
    nodes, places = mask.seq_lengths
    see = mask.mask_mod

    def see_packed(row: Tensor, head: Tensor, query: Tensor, place: Tensor) -> Tensor:
        return see(row, head, query % nodes, place)

    return _of(mask.kv_num_blocks[:, 0, 0], mask.kv_indices[0, 0, 0], group * nodes, places, see_packed)


def _blocks(used: Tensor, queries: int, places: int, see: Seen) -> BlockMask:
    """A mask over the blocks that hold the first `used [batch]` places."""
    size = _size(places)
    order = torch.arange(-(-places // size), dtype=torch.int32, device=used.device)
    return _of(((used + size - 1) // size).clamp(max=len(order)).int(), order, queries, places, see)


def _of(count: Tensor, order: Tensor, queries: int, places: int, see: Seen) -> BlockMask:
    """A mask over the first `count [batch]` blocks in `order [block]`. None is listed as seen whole: with a list of
    those, the kernel for few queries splits the places into parts whose borders do not depend on `count`.
    """
    tiles = -(-queries // TILE)
    counts = count[:, None, None].expand(-1, 1, tiles).contiguous()
    orders = order.expand(len(count), 1, tiles, -1).contiguous()
    return BlockMask(
        seq_lengths=(queries, places),
        kv_num_blocks=counts,
        kv_indices=orders,
        full_kv_num_blocks=torch.zeros_like(counts),
        full_kv_indices=torch.zeros_like(orders),
        q_num_blocks=None,
        q_indices=None,
        full_q_num_blocks=None,
        full_q_indices=None,
        BLOCK_SIZE=(TILE, _size(places)),
        mask_mod=see,
    )


def _size(places: int) -> int:
    """The places of a block: a divisor of all places, so that no block reaches beyond them."""
    return TILE if places % TILE == 0 else BLOCK


def fits(passes: Passes, slots: SlotCache) -> bool:
    """True if compiled passes of a model over a cache can attend through FlexAttention."""
    device = slots.length.device
    states = [each for layer in slots.owning for each in (layer.keys, layer.values)]
    return (
        device.type == "cuda"
        and kernels.available(device)
        and passes.manner == "interface"
        and bool(passes.model_info.model._supports_flex_attn)
        and bool(states)
        and all(_takes(each, device) for each in states)
    )


def _takes(states: Tensor, device: torch.device) -> bool:
    half_or_single = states.dtype in (torch.float16, torch.bfloat16, torch.float32)
    return half_or_single and states.device == device and states.shape[-1] >= LEAST_WIDTH


def block_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockMask,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`packed_attention`, whose arguments it shares, under a mask that is evaluated inside (`tree_blocks`). Refuses
    what would change the result.
    """
    refuse_unknown(module, kwargs, bool(dropout) or not isinstance(attention_mask, BlockMask))
    batch, heads, nodes, width = query.shape
    group, geometry = heads // key.shape[1], current.get()
    assert geometry is not None, "a mask of blocks outside of a pass"

    def capped(score: Tensor, *indices: Tensor) -> Tensor:
        assert softcap is not None
        return softcap * torch.tanh(score / softcap)

    out: Any = flex_attention(
        query.reshape(batch, key.shape[1], group * nodes, width),
        key,
        value,
        score_mod=None if softcap is None else capped,
        block_mask=geometry.shared(packed, attention_mask, group),
        scale=scaling,
        return_aux=None if s_aux is None else AuxRequest(lse=True),
    )
    if s_aux is not None:
        out, aux = out
        # A sink takes exp(sink) of the mass exp(sink) + exp(lse), and has no value.
        out = out * torch.sigmoid(aux.lse[..., None] - packed_sinks(s_aux, key.shape[1], nodes))
    return out.reshape(batch, heads, nodes, -1).transpose(1, 2).contiguous().to(query.dtype), None


AttentionInterface.register(FLEX, block_attention)
AttentionMaskInterface.register(FLEX, tree_blocks)
