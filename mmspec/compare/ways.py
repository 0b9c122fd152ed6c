"""Three ways to run a `generate` call of a script: plainly, with mmspec, and plainly while judging other ids.

Plainly is with unmodified transformers, or (`--reference plain`) with mmspec's plain decoding of a method's width.
"""

import contextlib
import inspect
import io
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mmspec.compare.recording import IDS, RecordedCall

Generate = Callable[..., Any]


class Way(Protocol):
    def prepare(self, model: Any) -> None:
        """Prepare a model, before the clock starts; by default there is nothing to do."""
        return

    def run(self, original: Generate, model: Any, arguments: dict[str, Any], call: RecordedCall) -> Any:
        """Run a call with these arguments. Returns its result; notes on it go into `call`."""


class Plain(Way):
    def run(self, original: Generate, model: Any, arguments: dict[str, Any], call: RecordedCall) -> Any:
        return original(model, **arguments)


class _Attached:
    """An attribute of a model that a copy of the model, or a file of it, does not have."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return _Attached, ()


class _PerModel:
    """Values by model, stored on the model: in a weak dictionary, a value that refers to its model keeps it alive."""

    _numbers = itertools.count()  # an id would come again when the object is gone

    def __init__(self) -> None:
        self._name = f"_mmspec_compared_{next(self._numbers)}"

    def __contains__(self, model: Any) -> bool:
        return vars(model).get(self._name, _Attached()).value is not None

    def __getitem__(self, model: Any) -> Any:
        return vars(model)[self._name].value

    def __setitem__(self, model: Any, value: Any) -> None:
        vars(model)[self._name] = _Attached(value)


class Speculating(Way):
    """Runs the call with mmspec, or `plainly` with plain decoding in passes of the width that the method of `how` has;
    what mmspec refuses is left to transformers, with the reason.
    """

    def __init__(self, how: Mapping[str, Any], plugins: Sequence[str], plainly: bool = False) -> None:
        self._how = how
        self._plainly = plainly
        self._plugins = list(plugins)
        self._handles = _PerModel()

    def prepare(self, model: Any) -> None:
        if model in self._handles:
            return
        from mmspec.registry import add_file, installed

        while self._plugins:
            add_file(installed(), Path(self._plugins.pop(0)))
        try:
            self._handles[model] = self._enabled(model)
        except (ValueError, TypeError) as refusal:
            self._handles[model] = refusal

    def run(self, original: Generate, model: Any, arguments: dict[str, Any], call: RecordedCall) -> Any:
        import torch

        from mmspec.core.refusal import OutOfScopeError

        handle = self._handles[model]
        if not isinstance(handle, Exception):
            before, arguments = torch.get_rng_state(), dict(arguments)
            try:
                answer = handle.generate(**arguments)
            except ValueError as refusal:
                torch.set_rng_state(before)
                handle = refusal
            else:
                report = handle.report
                call.method, call.why = handle.method, handle.why
                call.emitted, call.passes = report.emitted - report.rows, report.row_rounds
                call.width = report.width or 0
                return answer
        call.left_alone, call.documented = str(handle), isinstance(handle, OutOfScopeError)
        return original(model, **arguments)

    def _enabled(self, model: Any) -> Any:
        """A handle that is called directly: the model's `generate` stays the recorded one."""
        import mmspec
        from mmspec.api.plan import PLAIN
        from mmspec.core.refusal import OutOfScopeError

        if type(model).generate is not _mixin().generate:
            raise OutOfScopeError(f"{type(model).__name__} has a generate of its own")
        handle = mmspec.enable(model, **self._how)
        handle.disable()
        if self._plainly:
            handle = mmspec.enable(model, PLAIN, shape=handle.width)
            handle.disable()
        return handle


class Judging(Way):
    """Runs the call as it is, and says whether a near-tie explains where the ids of another run differ."""

    def __init__(self, folder: Path, numbers: Sequence[int]) -> None:
        self._folder = folder
        self._numbers = frozenset(numbers)

    def run(self, original: Generate, model: Any, arguments: dict[str, Any], call: RecordedCall) -> Any:
        if call.number not in self._numbers:
            return original(model, **arguments)
        import torch
        from safetensors import safe_open

        from mmspec.compare.equality import Stock

        before = torch.get_rng_state()
        out = original(model, **{**arguments, "return_dict_in_generate": True, "output_scores": True})
        ends = _setting(model, arguments, "eos_token_id")
        listed = () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)
        sampled = bool(_setting(model, arguments, "do_sample"))
        if out.scores is not None and not (sampled and out.sequences.is_cuda):  # those draws cannot be repeated here
            with safe_open(self._folder / IDS, "pt") as opened:
                ids = opened.get_tensor(str(call.number))
            scores = tuple(step.cpu() for step in out.scores)
            stock = Stock(out.sequences.cpu(), torch.get_rng_state(), scores, before, None, sampled, listed)
            _judge(ids, stock, call)
        if not _setting(model, arguments, "return_dict_in_generate"):
            return out.sequences
        asked = bool(_setting(model, arguments, "output_scores"))
        return type(out)(**{name: value for name, value in out.items() if asked or name != "scores"})


def named(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = list(inspect.signature(_mixin().generate).parameters)[1:]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def way_of(task: Mapping[str, Any]) -> Way:
    if task["enable"] is not None:
        return Speculating(task["enable"], task["plugins"], task["plainly"])
    if task["judge"] is not None:
        return Judging(Path(task["judge"]["folder"]), task["judge"]["numbers"])
    return Plain()


def read_task(file: Path) -> dict[str, Any]:
    """The task that the parent wrote: `script`, `args`, `folder`, `enable`, `plugins`, `plainly`, `judge`."""
    return json.loads(file.read_text())


def _judge(ids: Any, stock: Any, call: RecordedCall) -> None:
    from mmspec.compare.equality import assert_same

    call.judged = True
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # what the script prints is compared too
            call.near_ties = [(tie.row, tie.position, tie.margin) for tie in assert_same(ids, stock)]
    except AssertionError as wrong:
        call.wrong = str(wrong).removeprefix("seed None, ")


def _setting(model: Any, arguments: Mapping[str, Any], name: str) -> Any:
    """A setting as transformers reads it: the argument, else the call's configuration, else the model's."""
    if name in arguments:
        return arguments[name]
    configs = (arguments.get("generation_config"), model.generation_config)
    values = [getattr(config, name, None) for config in configs if config is not None]
    return next((value for value in values if value is not None), None)


def _mixin() -> Any:
    from transformers import GenerationMixin

    return GenerationMixin
