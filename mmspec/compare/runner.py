"""The child: runs a script as `python script.py` would, and records every `generate` call on a transformers model.

`python -m mmspec.compare.runner TASK.json`. Nothing but the standard library is imported before the script asks for it:
it may set environment variables that torch or the hub read once, when they are imported.
"""

import functools
import hashlib
import random
import runpy
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from mmspec.compare.recording import RecordedCall, save
from mmspec.compare.ways import Way, named, read_task, way_of


class AfterImport(MetaPathFinder):
    """Calls a function with a module as soon as it has been imported; stands first in `sys.meta_path`."""

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


SEED = 0
"""Seed of Python's, numpy's and torch's generators, which otherwise start differently; the script may reseed them."""


class Recorder:
    def __init__(self, way: Way) -> None:
        self.calls: list[RecordedCall] = []
        self.ids: dict[int, Any] = {}
        self._way = way
        self._known_models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._inside = threading.local()
        self._lock = threading.Lock()

    def watch(self, module: ModuleType) -> None:
        """Replace `generate` in `transformers.generation.utils`."""
        original = module.GenerationMixin.generate

        @functools.wraps(original)
        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "a_call", False):  # generate calls itself for some modes: that is one call
                return original(model, *args, **kwargs)
            self._inside.a_call = True
            try:
                return self._run(original, model, named(args, kwargs))
            finally:
                self._inside.a_call = False

        module.GenerationMixin.generate = generate

    def _run(self, original: Any, model: Any, arguments: dict[str, Any]) -> Any:
        call = self._begin(model, arguments)
        self._way.prepare(model)
        began = _now()
        try:
            answer = self._way.run(original, model, arguments, call)
        except Exception as error:
            call.raised = type(error).__name__
            raise
        finally:
            call.seconds = _now() - began
        sequences = getattr(answer, "sequences", answer)
        if hasattr(sequences, "detach"):  # a custom generate function of the script may return anything
            self.ids[call.number] = sequences.detach().cpu().clone()
        return answer

    def _begin(self, model: Any, arguments: dict[str, Any]) -> RecordedCall:
        prompt = arguments.get("inputs") if arguments.get("inputs") is not None else arguments.get("input_ids")
        columns = prompt.shape[1] if prompt is not None and prompt.dim() == 2 else 0
        with self._lock:
            first = model not in self._known_models
            self._known_models.add(model)
            call = RecordedCall(len(self.calls) + 1, type(model).__name__, first, columns, _generators())
            call.half = any(w.is_floating_point() and w.element_size() < 4 for w in model.parameters())
            self.calls.append(call)
        return call


def main(task_file: Path) -> int:
    task = read_task(task_file)
    recorder = Recorder(way_of(task))
    random.seed(SEED)
    seeds = {"numpy.random": lambda module: module.seed(SEED), "torch": lambda module: module.manual_seed(SEED)}
    after_import({**seeds, "transformers.generation.utils": recorder.watch})
    script = task["script"]
    sys.argv = [script, *task["args"]]
    sys.path[0] = str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        _print(error, script)
        return 1
    finally:
        sys.stdout.flush()
        save(Path(task["folder"]), recorder.calls, recorder.ids)
    return 0


def _print(error: Exception, script: str) -> None:
    """The traceback, from the script on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)


def _generators() -> str:
    import torch

    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]
    return hashlib.sha256(b"".join(state.numpy().tobytes() for state in states)).hexdigest()


def _now() -> float:
    """The time, after all work on the device is done."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
