"""Attention for tree passes: query groups are packed into the query axis, so that keys are never repeated.

The function is registered with transformers under the name `mmspec` and switched on for the duration of a pass.
Soft-caps and attention sinks are supported. Unknown arguments are refused, because ignoring one would give wrong
results without an error.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from mmspec.hosts.masks import NAME, added, current

_IGNORED = frozenset(
    {
        "position_ids", "use_cache", "output_attentions", "output_hidden_states", "cache_position", "sliding_window",
        "output_router_logits", "is_causal", "layer_idx",
    }
)  # fmt: skip
"""Arguments whose content is already in the mask, or that attention does not read."""


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention under an explicit mask; returns the output `[batch, node, heads, value width]`, and
    None in the place of attention weights.

    Of `query [batch, heads, node, width]`, `key [batch, key heads, slot, width]` and `value [batch, key heads, slot,
    value width]`; the query heads of one group are neighbours. The mask is `[batch, 1, node, slot]` bool, or what a
    model made of it: terms that are added to the scores, `[batch, heads, node, slot]` float; None is for one node that
    sees every slot. `scaling` is the factor of the scores, by default `width ** -0.5`; scores become `softcap ·
    tanh(score / softcap)` (Gemma 2); `s_aux [heads]` are logits of attention sinks, which take probability mass and
    have no value (GPT-OSS). Arguments whose content is already in the mask are ignored; refuses those that would change
    the result, as `dropout`.
    """
    refuse_unknown(module, kwargs, bool(dropout) or (attention_mask is None and query.shape[2] > 1))
    batch, heads, nodes, width = query.shape
    geometry, dtype = current.get(), query.dtype
    if geometry is not None and geometry.exact:
        query, key, value = query.double(), key.double(), value.double()
    group = heads // key.shape[1]
    # Plain reshapes: in every layer of every pass, parsing a pattern would cost as much as the attention itself.
    packed = query.reshape(batch, key.shape[1], group * nodes, width)
    mask = attention_mask
    if mask is not None and mask.shape[1] == heads > 1:  # one mask per head (Doge); packed as the queries are
        mask = added(mask.reshape(batch, key.shape[1], group * nodes, mask.shape[-1]), 1, query.dtype)
    elif mask is not None:
        form = mask, group, query.dtype
        mask = added(*form) if geometry is None else geometry.shared(added, *form)
    if softcap is None and s_aux is None:
        out = F.scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
    else:
        sinks = None if s_aux is None else packed_sinks(s_aux, key.shape[1], nodes)
        out = _scored(packed, key, value, mask, scaling, softcap, sinks)
    return out.reshape(batch, heads, nodes, -1).transpose(1, 2).contiguous().to(dtype), None


def _scored(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention with a soft-cap or sinks, which torch's fused kernels do not support."""
    scores = query @ key.transpose(2, 3) * (scaling if scaling is not None else query.shape[-1] ** -0.5)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype).expand(len(scores), -1, -1, -1)], -1)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    return weights[..., : key.shape[2]] @ value


def packed_sinks(s_aux: Tensor, key_heads: int, nodes: int) -> Tensor:
    """The sink logit `[heads]` of every packed query: `[1, key heads, group · node, 1]`."""
    return s_aux.reshape(1, key_heads, -1, 1).repeat_interleave(nodes, 2)


def refuse_unknown(module: torch.nn.Module, arguments: Mapping[str, Any], other: bool = False) -> None:
    """Refuse arguments that an attention function does not name, and would change the result; `other`: there is
    dropout, or no mask where one is needed.
    """
    unknown = {name for name, value in arguments.items() if value is not None and value is not False} - _IGNORED
    if unknown or other:
        raise ValueError(
            f"tree attention of {type(module).__name__} cannot honour {sorted(unknown) or 'dropout or a missing mask'}"
        )


AttentionInterface.register(NAME, packed_attention)


_locks: "WeakKeyDictionary[torch.nn.Module, threading.RLock]" = WeakKeyDictionary()
_locks_lock = threading.Lock()


def model_lock(model: torch.nn.Module) -> threading.RLock:
    """The lock of a model: the attention function is a field of its config, so only one thread may run a pass."""
    with _locks_lock:
        return _locks.setdefault(model, threading.RLock())


def share_lock(model: torch.nn.Module, other: torch.nn.Module) -> None:
    """Give a copy of a model, which shares its config, the lock of that model, `other`."""
    lock = model_lock(other)
    with _locks_lock:
        _locks[model] = lock


@contextmanager
def tree_attention(config: Any, name: str = NAME) -> Iterator[None]:
    """Inside the block, the layers that read `config` attend through the function of that name, `packed_attention`."""
    before = config._attn_implementation_internal
    config._attn_implementation_internal = name
    try:
        yield
    finally:
        config._attn_implementation_internal = before
