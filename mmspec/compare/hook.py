"""Calling a function right after a module is imported, without importing the module first.

A script may set environment variables that torch or the hub read once, when they are imported; so the recorder must not
import them before the script does.
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
        then: The function to call, by the module's full name.
    """

    def __init__(self, then: dict[str, Callable[[ModuleType], None]]) -> None:
        self._then = dict(then)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """For the modules in question, the spec of the other finders with a loader of ours around theirs."""
        then = self._then.pop(name, None)  # removed, or find_spec below would come back here
        if then is None:
            return None
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _LoaderThen(spec.loader, then)
        return spec


class _LoaderThen(Loader):
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
    """Call functions after imports, by the module's full name; at once for modules that are imported already."""
    for name in [name for name in then if name in sys.modules]:
        then[name](sys.modules[name])
    sys.meta_path.insert(0, AfterImport({name: call for name, call in then.items() if name not in sys.modules}))
