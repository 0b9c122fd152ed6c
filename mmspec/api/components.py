"""diffusers pipelines that call language models: every component that can generate is enabled, under one handle.

Pipelines rewrite prompts and describe pictures with `component.generate(…)`, so a component that is enabled speeds them
up without their knowledge. Components that a pipeline builds later are enabled when it stores them.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Self

from torch import nn
from transformers import GenerationMixin

from mmspec.api.adapters import BLOCK, HANDLE, RUNNING, refuse_copy
from mmspec.core.report import Report
from mmspec.registry.suggest import unknown

Settings = Mapping[str, Any]
"""Arguments of `enable` for one component."""

LATER = {"_prompt_enhancer": "prompt_enhancer_head"}
"""Where pipelines store a language model that they build at its first use, and the component that they build it of.

Ideogram 4 builds it of its text encoder's body and a head. A modular pipeline's step stores it, not the pipeline.
"""

OWN_LOOPS = {"AudioLDM2Pipeline": "language_model", "MiniMaxMusic3ModularPipeline": "language_model"}
"""Pipelines that run a language model step by step, and the component: its `generate` is never called.

AudioLDM 2 appends hidden states, no units; MiniMax Music 3 appends frames of eight codes, seven of another model.
"""

_HOMES = {
    "diffusers.pipelines.pipeline_utils": "DiffusionPipeline",
    "diffusers.modular_pipelines.modular_pipeline": "ModularPipeline",
}


def is_pipeline(model: object) -> bool:
    """True if an object is a pipeline of diffusers; if it is, diffusers was imported before."""
    homes = [(sys.modules.get(home), name) for home, name in _HOMES.items()]
    return any(home is not None and isinstance(model, vars(home)[name]) for home, name in homes)


def can_generate(part: object) -> bool:
    """True if a component has the `generate` of transformers, and its class can use it."""
    return isinstance(part, GenerationMixin) and bool(part.can_generate())


def some_generate(pipe: Any) -> bool:
    """True if a pipeline of diffusers has a component that can generate, or will build one."""
    return is_pipeline(pipe) and (any(map(can_generate, vars(pipe).values())) or _waits(pipe))


class EnabledComponents:
    """A pipeline whose language models speculate; leave it with `disable()` or as a context manager.

    While it is enabled, the pipeline is an instance of a subclass of the same name that notices new components.

    Attributes:
        components: Handles of the enabled components, by name.
        skipped: Why the other models of the pipeline are not enabled, by name.

    `enable` is called with a model and its arguments: the `common` ones, then its `own`.
    `skipped` is what was tried before, with the reason why it did not fit.

    Raises:
        ValueError: No component can be enabled, or one that `own` names cannot.
    """

    def __init__(
        self,
        pipe: Any,
        enable: Callable[..., Any],
        common: Settings,
        own: Mapping[str, Settings],
        skipped: Mapping[str, str],
    ) -> None:
        self._pipe, self._enable, self._common, self._own = pipe, enable, common, own
        self._kind = type(pipe)
        self._places = [(place, type(place)) for place in (pipe, *_builders(pipe))]
        self._kinds = {kind.__name__ for kind in self._kind.__mro__}
        self.components: dict[str, Any] = {}
        self.skipped: dict[str, str] = dict(skipped)
        self._open: list[str] = []
        built = {name: vars(place)[name] for place, _ in self._places[1:] for name in LATER if name in vars(place)}
        parts = {**vars(pipe), **built}
        models = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
        for name in own:
            if name not in parts:
                raise ValueError(unknown("component", name, models))
            if name not in models and name not in LATER:
                what = type(parts[name]).__name__
                raise ValueError(f"the component {name!r} cannot be enabled: a {what} is no model")
        try:
            for name, part in models.items():
                self._offer(name, part)
            for name in own.keys() & self.skipped.keys():
                raise ValueError(f"the component {name!r} cannot be enabled: {self.skipped[name]}")
            if not self.components and not _waits(pipe):
                reasons = "".join(f"\n  {name}: {reason}" for name, reason in self.skipped.items())
                raise ValueError(f"no component of this {self._kind.__name__} can be enabled:{reasons or ' no models'}")
        except BaseException:
            self._disable_components()
            raise
        vars(pipe)[HANDLE] = self
        for place, kind in self._places:
            object.__setattr__(place, "__class__", _noticing(kind, self._offer))

    @property
    def reports(self) -> dict[str, Report | None]:
        """Counts and times of the last call of every enabled component; None before its first."""
        return {name: handle.report for name, handle in self.components.items()}

    @property
    def held(self) -> list[str]:
        """The reason why another `enable` of the pipeline may not take the handle's place now."""
        running = any(RUNNING in handle.held for handle in self.components.values())
        return [*self._open, *([RUNNING] if running else [])]

    def __reduce__(self) -> NoReturn:
        refuse_copy(self._pipe)

    def disable(self) -> None:
        """Give every component its own `generate` back, and the pipeline its own class."""
        if vars(self._pipe).get(HANDLE) is self:
            del vars(self._pipe)[HANDLE]
            for place, kind in self._places:
                object.__setattr__(place, "__class__", kind)
        self._disable_components()

    def _offer(self, name: str, part: object) -> None:
        """Enable what stands, or was stored just now, under a name of the pipeline, or note why not."""
        if not isinstance(part, nn.Module):
            return
        older = self.components.pop(name, None)
        if older is not None and older not in self.components.values():
            older.disable()
        self.skipped.pop(name, None)
        shared = [h for h in self.components.values() if vars(part).get("generate") == h.generate]
        if shared:
            self.components[name] = shared[0]
        elif not can_generate(part):
            self.skipped[name] = f"a {type(part).__name__} does not generate"
        elif name in [own for kind, own in OWN_LOOPS.items() if kind in self._kinds]:
            self.skipped[name] = f"a {self._kind.__name__} runs it in a loop of its own and does not call generate"
        else:
            try:
                handle = self._enable(part, **{**self._common, **self._own.get(name, {})})
                handle.held.append(f"it is a part of an enabled {self._kind.__name__}")
                self.components[name] = handle
            except (ValueError, TypeError) as error:
                self.skipped[name] = str(error)

    def _disable_components(self) -> None:
        for handle in self.components.values():
            handle.disable()

    def __repr__(self) -> str:
        enabled = ", ".join(f"{name}: {handle.method}" for name, handle in self.components.items())
        return f"<mmspec on {self._kind.__name__} ({enabled})>"

    def __enter__(self) -> Self:
        self._open.append(BLOCK)
        return self

    def __exit__(self, *raised: object) -> None:
        self._open.remove(BLOCK)
        self.disable()


def _waits(pipe: Any) -> bool:
    """True if a pipeline will build a language model that it does not have yet."""
    return any(
        place in vars(holder) and vars(holder)[place] is None and vars(pipe).get(made) is not None
        for holder in (pipe, *_builders(pipe))
        for place, made in LATER.items()
    )


def _builders(pipe: Any) -> list[Any]:
    """The steps of a modular pipeline that build a language model at their first use."""
    found, waiting = list[Any](), [vars(pipe).get("_blocks")]
    while waiting:
        step = waiting.pop()
        if step is not None:
            found += [step] if LATER.keys() & vars(step).keys() else []
            waiting += dict(vars(step).get("sub_blocks") or {}).values()
    return found


def _noticing(kind: Any, offer: Callable[[str, object], None]) -> Any:
    """A subclass, of the same name, that offers every attribute after it was stored."""

    def stores(self: Any, name: str, value: object) -> None:
        kind.__setattr__(self, name, value)
        offer(name, value)

    same = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**same, "__setattr__": stores})
