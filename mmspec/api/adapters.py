"""Live objects that keep their own loop, such as diffusers pipelines: an adapter takes them, or their components do.

`mmspec.registry.AdapterSpec` says what an adapter is. Else every component of a pipeline that can generate is enabled,
under one handle: pipelines rewrite prompts and describe pictures with `component.generate(…)`. Components that a
pipeline builds later are enabled when it stores them.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, Self, runtime_checkable

from torch import nn
from transformers import GenerationMixin

from mmspec.api.build import budget
from mmspec.api.plan import AUTO, number_of
from mmspec.api.refusals import MEANT
from mmspec.core.report import Report
from mmspec.registry import AdapterSpec, installed
from mmspec.registry.suggest import unknown

HANDLE = "_mmspec_enabled"  # the attribute of a live object that holds the handle while the object is enabled


@runtime_checkable
class Replaceable(Protocol):
    """A handle that gives way where its object is enabled again, as when a notebook's cell is run twice."""

    @property
    def held(self) -> list[str]:
        """The reason why it may not give way now, such as an open `with` block; empty where it may."""

    def disable(self) -> None: ...


BLOCK, RUNNING = "its `with` block is still open", "a call of it is running"  # the reason why a handle is held


def make_way(model: Any, handle: Any) -> None:
    """Undo what an earlier `enable` did to a live object; refuses where its handle is held."""
    if handle is None:
        return
    why = handle.held if isinstance(handle, Replaceable) else ["its handle does not give way"]
    if why:
        kind = type(model).__name__
        raise ValueError(f"this {kind} is enabled already, and {why[-1]}; mmspec.disable(…) of this {kind} undoes that")
    handle.disable()


def refuse_copy(model: Any) -> NoReturn:
    """Refuse to copy or pickle an enabled object whose copy would call the methods of this one."""
    kind = type(model).__name__
    raise TypeError(f"a {kind} that is enabled is not copied: call mmspec.disable(…) before, and enable the copy")


def enabled(
    model: Any,
    adapters: Sequence[AdapterSpec],
    method: str,
    k: int | None,
    parts: Mapping[str, Any],
    options: dict[str, Any],
) -> Any:
    """Enable such an object; returns the handle, a context manager with `report`, `method`, `why` and `disable()`.

    `auto` takes the first of the adapters; `parts` is what else `enable` takes by name, of which adapters have none.
    """
    chosen = next((a for a in adapters if method in (AUTO, a.name, a.qualified)), None)
    kind = type(model).__name__
    if chosen is None:
        fit = ", ".join(adapter.name for adapter in adapters)
        raise ValueError(f"{method!r} does not fit a {kind}, which keeps its own loop. Methods that fit: {fit}")
    k, _ = budget(number_of(k, options.pop("num_speculative_tokens", None)), [(chosen.k, chosen.name)])
    given = [name for name, value in parts.items() if value is not None] + list(options)
    if given:
        hints = "".join(f"; {unknown('argument', name, ('method', 'k'), MEANT)}" for name in options)
        raise ValueError(f"{chosen.name} takes k= and no {', no '.join(f'{name}=' for name in given)}{hints}")
    why = f"{chosen.name}, which is for such objects as a {kind}" if method == AUTO else ""
    return chosen.load()(model, method=chosen.name, k=k, why=why)


Settings = Mapping[str, Any]  # arguments of `enable` for one component

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


def loops_of(model: Any, method: str, components: Mapping[str, Settings] | None) -> tuple[Sequence[AdapterSpec], bool]:
    """The adapters that may take an object which keeps its own loop, none of a model, and True if its components are
    enabled else; `components` are the settings that the user gave for these.
    """
    fitting = installed().adapters_for(model)
    by_parts = is_pipeline(model) and not any(method in (adapter.name, adapter.qualified) for adapter in fitting)
    if by_parts and fitting and components is None:
        by_parts = any(map(can_generate, vars(model).values())) or _waits(model)
    if components is not None and not by_parts:
        raise ValueError("components= is for pipelines of diffusers, with methods for language models")
    adapted = components is None and (method == AUTO or not by_parts)
    return (fitting if adapted else ()), by_parts


class EnabledComponents:
    """A pipeline whose language models speculate; leave it with `disable()` or as a context manager.

    While it is enabled, the pipeline is an instance of a subclass of the same name that notices new components.
    `enable` is called with a model and its arguments: the `common` ones, then its `own`. `skipped` is what was tried
    before, with the reason why it did not fit. Refuses a pipeline none of whose components, or not one that `own`
    names, can be enabled.
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
        self.components: dict[str, Any] = {}  # handles of the enabled components, by name
        self.skipped: dict[str, str] = dict(skipped)  # why the other models are not enabled, by name
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
