"""The functions that layers call, replaced for the duration of a pass: recurrent ones by tree operations.

transformers' mixers call their operations as functions of their modelling module, by name. During a pass each declared
name is bound to a dispatcher. In the thread and context of the pass it calls the tree operation, everywhere else the
original function. Passes of several models that share a module are counted; after the last one the module holds its
original function objects again.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from mmspec.hosts.fused_layers import ROTARY, globals_of, rotated
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.traceable import Traceable
from mmspec.hosts.tree_op import Branches, TreeOp

Run = Callable[[str, Any, tuple[Any, ...], dict[str, Any]], Any]
Sites = Sequence[tuple[dict[str, Any], str]]  # pairs of a module's globals and one name in them

_running: Traceable[Run] = Traceable("mmspec_recurrent")
"""The object that runs the operations of the pass that runs, or is traced, here."""
_lock = threading.Lock()
_STATE_UPDATES = frozenset({"update_conv_state", "update_recurrent_state"})
"""Methods of a cache that only recurrent layers call."""


class _PatchedName:
    """A name in a module that is bound to a dispatcher during passes."""

    def __init__(self, names: dict[str, Any], name: str) -> None:
        self.original, self.passes = names[name], 0
        original = self.original

        @functools.wraps(original)
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            run = _running.get()
            return original(*args, **kwargs) if run is None else run(name, original, args, kwargs)

        self.dispatch = dispatch


_patched: dict[tuple[int, str], _PatchedName] = {}
"""The names that were ever bound to a dispatcher, by the id of the module's globals and the name.

A name gets the same dispatcher in every pass, which compiled code checks.
"""


def sites(model: nn.Module, ops: Mapping[str, TreeOp]) -> Sites:
    """The places where the recurrent layers of a model look up the functions that `ops` replaces."""
    kinds = {type(module) for module in mixers(model)}
    modules = {id(names): names for names in map(globals_of, kinds)}
    return [(names, name) for names in modules.values() for name in ops if name in names]


@contextmanager
def dispatched(sites: Sites) -> Iterator[None]:
    """Inside the block, the names at `sites` are bound to dispatchers."""
    _enter(sites)
    try:
        yield
    finally:
        _leave(sites)


@contextmanager
def running(ops: Mapping[str, TreeOp], cache: SlotCache, branches: Branches) -> Iterator[None]:
    """Inside the block, which torch may trace, dispatchers run over the tree and read the states of `cache`."""

    def run(name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == ROTARY:
            return rotated(original, *args, **kwargs)
        return cache.run(ops[name], branches, args, kwargs)

    with _running.holding(run):
        yield


def original(names: Mapping[str, Any], name: str) -> Any:
    """The value of a name in a module's globals outside of passes."""
    patched, now = _patched.get((id(names), name)), names[name]
    return now if patched is None or now is not patched.dispatch else patched.original


def mixers(model: nn.Module) -> list[nn.Module]:
    """The recurrent layers of a model: modules whose code updates states in a cache."""
    return [module for module in model.modules() if _is_mixer(module)]


def called_functions(model: nn.Module, ops: Mapping[str, TreeOp]) -> tuple[list[str], list[str]]:
    """The functions of their own module that a model's recurrent layers call: those in `ops`, and the others."""
    found: set[str] = set()
    kinds: set[Any] = {type(module) for module in mixers(model)}
    for kind in kinds:
        names = globals_of(kind)
        found |= {name for name in _called(kind) if inspect.isfunction(names.get(name))}
    return sorted(found & set(ops)), sorted(found - set(ops))


def replaced_forwards(model: nn.Module) -> list[str]:
    """Names of recurrent layers whose forward was replaced (`use_kernels=True` does it), so that it bypasses the
    dispatcher; accelerate's wrappers do not.
    """
    named = [(name, module) for name, module in model.named_modules() if _is_mixer(module)]
    return [name for name, module in named if "forward" in vars(module) and not hasattr(module, "_hf_hook")]


def _enter(sites: Sites) -> None:
    with _lock:
        for names, name in sites:
            patched = _patched.get((id(names), name))
            if patched is None or (not patched.passes and names[name] is not patched.original):
                patched = _patched[id(names), name] = _PatchedName(names, name)
            names[name] = patched.dispatch
            patched.passes += 1


def _leave(sites: Sites) -> None:
    with _lock:
        for names, name in sites:
            patched = _patched[id(names), name]
            patched.passes -= 1
            if not patched.passes:
                names[name] = patched.original


def _is_mixer(module: nn.Module) -> bool:
    kind: Any = type(module)
    return bool(_called(kind) & _STATE_UPDATES)


@functools.lru_cache(maxsize=4096)
def _called(kind: Any) -> frozenset[str]:
    methods = (inspect.unwrap(method) for method in vars(kind).values() if inspect.isfunction(method))
    inherited = inspect.unwrap(kind.forward) if inspect.isfunction(kind.forward) else None
    code = [method.__code__ for method in (*methods, inherited) if inspect.isfunction(method)]
    return frozenset(name for each in code for name in each.co_names)
