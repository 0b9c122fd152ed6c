"""Recurrent models and hybrids of transformers as targets: the host's own, with the tree operations of all plugins."""

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.tree_op import TreeOp
from mmspec.registry import installed
from mmspec.registry.warn import warn

HOOK = "mmspec_tree_ops"


def recurrent(model: Any, drafting: bool = False) -> TransformersTarget:
    """The target for a live model.

    Args:
        model: It.
        drafting: It drafts in another target's call.

    Raises:
        ValueError: It cannot be speculated over, or two plugins declare one operation; says which.
    """
    with without_advice():
        target = TransformersTarget(model, drafting, declared())
    if target.model.dtype != torch.float32:
        warn(f"states of recurrent layers are kept in float32, also those of a model in {target.model.dtype}")
    return target


@contextmanager
def without_advice() -> Iterator[None]:
    """Without transformers' advice to install faster kernels: inside passes ours stand in those functions' places."""

    def unrelated(record: logging.LogRecord) -> bool:
        return "is falling back to its reference PyTorch implementation" not in record.getMessage()

    logger = logging.getLogger("transformers.integrations.hub_kernels")
    logger.addFilter(unrelated)
    try:
        yield
    finally:
        logger.removeFilter(unrelated)


recurrent.example = "mmspec_ssm.example:hybrid"  # type: ignore[attr-defined]


def fits(model: Any) -> bool:
    """Whether the cache that transformers makes for a model has a layer with a state."""
    try:
        layers = DynamicCache(config=model.config).layers
    except Exception:  # transformers itself has no cache for it
        return False
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)


def declared() -> dict[str, TreeOp]:
    """The operations that installed plugins declare, by the names of the functions that they stand for.

    Raises:
        ValueError: Two plugins declare the same name.
    """
    registry, owners, found = installed(), dict[str, str](), dict[str, TreeOp]()
    for plugin in registry.plugins():
        for given in registry.ask(plugin.name, HOOK) or ():
            for name, place in given.items():
                if name in owners:
                    raise ValueError(f"plugins {owners[name]!r} and {plugin.name!r} both declare {name!r} over a tree")
                owners[name], found[name] = plugin.name, _made(place)
    return found


def _made(place: str) -> TreeOp:
    module, _, name = place.partition(":")
    operation: TreeOp = getattr(importlib.import_module(module), name)()
    return operation
