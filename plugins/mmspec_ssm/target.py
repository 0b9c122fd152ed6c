"""Recurrent and hybrid models of transformers as targets."""

import importlib
from typing import Any

import torch

from mmspec.hosts.model_info import has_recurrent_layers
from mmspec.hosts.offers import RECURRENT
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.tree_op import TreeOp
from mmspec.kits.text.language import without_kernel_notices
from mmspec.registry import installed
from mmspec.registry.warn import warn

HOOK = "mmspec_tree_ops"  # the hook with which plugins declare tree operations


class RecurrentTarget(TransformersTarget):
    """A recurrent or hybrid decoder of transformers, with the tree operations that installed plugins declare."""

    offers = RECURRENT

    def __init__(self, model: Any, drafting: bool = False) -> None:
        with without_kernel_notices():
            super().__init__(model, drafting, declared())
        if self.model.dtype != torch.float32:
            warn(
                f"states of recurrent layers are kept in float32, also those of a model in {self.model.dtype}; under "
                "one shape on a CPU in float64"
            )


def fits(model: Any) -> bool:
    """True if transformers' cache for a model has a layer with a recurrent or convolution state."""
    try:
        return has_recurrent_layers(model)
    except Exception:  # transformers has no cache for the model
        return False


def declared() -> dict[str, TreeOp]:
    """The tree operations that installed plugins declare, by the names of the functions that they replace; refuses a
    name that two declare.
    """
    registry, owners, found = installed(), dict[str, str](), dict[str, TreeOp]()
    for plugin in registry.plugins():
        for ops in registry.ask(plugin.name, HOOK) or ():
            for name, place in ops.items():
                if name in owners:
                    raise ValueError(f"plugins {owners[name]!r} and {plugin.name!r} both declare {name!r} over a tree")
                module, _, kind = place.partition(":")
                owners[name], found[name] = plugin.name, getattr(importlib.import_module(module), kind)()
    return found
