"""Doing something right after a module is imported, whoever imports it, and importing nothing before.

A script may set environment variables that torch or the hub read once, when they are imported; so what watches a script
must not import them first.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class AfterImport(MetaPathFinder):
    """Calls a function with a module as soon as it has been imported; stands first in `sys.meta_path`.

    Args:
        then: What to call, by the module's full name.
    """

    def __init__(self, then: dict[str, Callable[[ModuleType], None]]) -> None:
        self._then = dict(then)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Of our modules, what the other finders say, with a loader of ours around theirs."""
        then = self._then.pop(name, None)  # out, or find_spec below would come back here
        if then is None:
            return None
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, then)
        return spec


class _Then(Loader):
    def __init__(self, loader: Loader, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then(module)


def after_import(then: dict[str, Callable[[ModuleType], None]]) -> None:
    """Install it; a module that is there already is dealt with at once."""
    for name in [name for name in then if name in sys.modules]:
        then[name](sys.modules[name])
    sys.meta_path.insert(0, AfterImport({name: call for name, call in then.items() if name not in sys.modules}))
