"""The functions of a modelling module that its recurrent layers call, computed over a tree for the length of a pass.

transformers' mixers call their operations as functions of their module, by name. During a pass a dispatcher stands
under each declared name: in the thread and the context of the pass it goes to the tree operation, in every other to the
function that was there. Behind the pass the module holds its own functions again, the very objects, whoever else is
still running: passes of several models over one module are counted.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import nn

from mmspec.core.tree import TreeIndex
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.tree_op import Branches, TreeOp

Run = Callable[[str, tuple[Any, ...], dict[str, Any]], Any]
Sites = Sequence[tuple[dict[str, Any], str]]
"""A module's names, and one of them."""

_running: ContextVar[Run | None] = ContextVar("mmspec_recurrent", default=None)
_lock = threading.Lock()
_FOLDING = frozenset({"update_conv_state", "update_recurrent_state"})
"""What only recurrent layers call."""


class _Place:
    """A name of a module while a dispatcher stands under it.

    Args:
        names: The module's names.
        name: One of them.
    """

    def __init__(self, names: dict[str, Any], name: str) -> None:
        self.names, self.name, self.own, self.passes = names, name, names[name], 0
        own = self.own

        @functools.wraps(own)
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            run = _running.get()
            return own(*args, **kwargs) if run is None else run(name, args, kwargs)

        self.dispatch = dispatch


_places: dict[tuple[int, str], _Place] = {}
"""By the module's names and the name: those under which a dispatcher stands now."""


def sites(model: nn.Module, ops: Mapping[str, TreeOp]) -> Sites:
    """Where the recurrent layers of a model look its declared operations up."""
    kinds = {type(module) for module in mixers(model)}
    modules = {id(names): names for names in map(_names, kinds)}
    return [(names, name) for names in modules.values() for name in ops if name in names]


@contextmanager
def dispatched(sites: Sites, ops: Mapping[str, TreeOp], cache: SlotCache, index: TreeIndex) -> Iterator[None]:
    """Inside the block, the operations at `sites` run over a tree and read the states of `cache`."""
    branches = Branches(index)

    def run(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return cache.run(ops[name], branches, args, kwargs)

    token = _running.set(run)
    _enter(sites)
    try:
        yield
    finally:
        _leave(sites)
        _running.reset(token)


def mixers(model: nn.Module) -> list[nn.Module]:
    """The recurrent layers of a model: modules whose code hands states to a cache."""
    return [module for module in model.modules() if _folds(module)]


def called_functions(model: nn.Module, ops: Mapping[str, TreeOp]) -> tuple[list[str], list[str]]:
    """Functions of their own module that a model's recurrent layers call: those that `ops` has, and all others."""
    found: set[str] = set()
    kinds: set[Any] = {type(module) for module in mixers(model)}
    for kind in kinds:
        names = _names(kind)
        found |= {name for name in _called(kind) if inspect.isfunction(names.get(name))}
    return sorted(found & set(ops)), sorted(found - set(ops))


def replaced_forwards(model: nn.Module) -> list[str]:
    """Recurrent layers whose forward was replaced, as a kernels hub does: their operations cannot be reached.

    A forward that accelerate wraps is still the layer's own.
    """
    own = [(name, module) for name, module in model.named_modules() if _folds(module)]
    return [name for name, module in own if "forward" in vars(module) and not hasattr(module, "_hf_hook")]


def _enter(sites: Sites) -> None:
    with _lock:
        for names, name in sites:
            place = _places.get((id(names), name))
            if place is None:
                place = _places[id(names), name] = _Place(names, name)
                names[name] = place.dispatch
            place.passes += 1


def _leave(sites: Sites) -> None:
    with _lock:
        for names, name in sites:
            place = _places[id(names), name]
            place.passes -= 1
            if not place.passes:
                names[name] = place.own
                del _places[id(names), name]


def _folds(module: nn.Module) -> bool:
    kind: Any = type(module)
    return bool(_called(kind) & _FOLDING)


def _names(kind: type[nn.Module]) -> dict[str, Any]:
    """Of the module in which a layer's forward is written; a class may inherit it from elsewhere."""
    names: dict[str, Any] = getattr(inspect.unwrap(kind.forward), "__globals__", {})
    return names


@functools.lru_cache(maxsize=4096)
def _called(kind: Any) -> frozenset[str]:
    """Names that the methods of a layer's class use."""
    methods = (inspect.unwrap(method) for method in vars(kind).values() if inspect.isfunction(method))
    inherited = inspect.unwrap(kind.forward) if inspect.isfunction(kind.forward) else None
    code = [method.__code__ for method in (*methods, inherited) if inspect.isfunction(method)]
    return frozenset(name for each in code for name in each.co_names)
