"""Recurrent and hybrid models of transformers as targets."""

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mmspec.hosts.model_info import has_recurrent_layers
from mmspec.hosts.offers import RECURRENT
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.tree_op import TreeOp
from mmspec.registry import installed
from mmspec.registry.warn import warn

HOOK = "mmspec_tree_ops"
"""The hook with which plugins declare tree operations."""


class RecurrentTarget(TransformersTarget):
    """A recurrent or hybrid decoder of transformers, with the tree operations that installed plugins declare.

    Args:
        model: The live model.
        drafting: Whether the model drafts in another target's calls.

    Raises:
        ValueError: Drafts cannot be verified with this model, or two plugins declare one operation.
    """

    offers = RECURRENT

    def __init__(self, model: Any, drafting: bool = False) -> None:
        with without_advice():
            super().__init__(model, drafting, declared())
        if self.model.dtype != torch.float32:
            warn(
                f"states of recurrent layers are kept in float32, also those of a model in {self.model.dtype}; under "
                "one shape on a CPU in float64"
            )


@contextmanager
def without_advice() -> Iterator[None]:
    """Suppress transformers' advice to install faster kernels, which passes would not use."""

    def unrelated(record: logging.LogRecord) -> bool:
        return "is falling back to its reference PyTorch implementation" not in record.getMessage()

    logger = logging.getLogger("transformers.integrations.hub_kernels")
    logger.addFilter(unrelated)
    try:
        yield
    finally:
        logger.removeFilter(unrelated)


def fits(model: Any) -> bool:
    """Whether transformers' cache for a model has a layer with a recurrent or convolution state."""
    try:
        return has_recurrent_layers(model)
    except Exception:  # transformers has no cache for the model
        return False


def declared() -> dict[str, TreeOp]:
    """The tree operations that installed plugins declare, by the names of the functions that they replace.

    Raises:
        ValueError: Two plugins declare the same name.
    """
    registry, owners, found = installed(), dict[str, str](), dict[str, TreeOp]()
    for plugin in registry.plugins():
        for ops in registry.ask(plugin.name, HOOK) or ():
            for name, place in ops.items():
                if name in owners:
                    raise ValueError(f"plugins {owners[name]!r} and {plugin.name!r} both declare {name!r} over a tree")
                owners[name], found[name] = plugin.name, _loaded(place)
    return found


def _loaded(place: str) -> TreeOp:
    """The operation at `module:Class`."""
    module, _, name = place.partition(":")
    operation: TreeOp = getattr(importlib.import_module(module), name)()
    return operation
