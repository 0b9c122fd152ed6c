"""The registry: which plugins there are, what they offer, and who is called what."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pluggy

from mmspec.registry import hookspecs, switches
from mmspec.registry.fields import NAME
from mmspec.registry.plugin import CORE, Plugin, PluginError, describe, refuse_undeclared
from mmspec.registry.printable import one_line
from mmspec.registry.specs import KINDS, SPECS, AdapterSpec, Spec, TargetSpec
from mmspec.registry.suggest import unknown
from mmspec.registry.warn import warn

MOST = 1000  # components of one plugin: who yields without end is stopped there


class Registry:
    """Plugins and their components. `installed()` is the one that everybody shares."""

    def __init__(self) -> None:
        self._hooks = pluggy.PluginManager(hookspecs.GROUP)
        self._hooks.add_hookspecs(hookspecs)
        self._plugins: dict[str, Plugin] = {}

    def register(self, plugin: object, name: str, record: Plugin | None = None) -> Plugin:
        """Add a module or any object with hooks on it.

        The name is what stands before the colon in `plugin:name`; the record, what is known of distribution and module.
        Refuses a name that is taken, a component that is given twice, a word that nobody declares, and what is no spec.
        """
        if not NAME.fullmatch(name):
            raise ValueError(f"a plugin's name is lower-case words joined by '-', '.' or '_', not {name!r}")
        if name in self._plugins:
            raise ValueError(f"a plugin called {name!r} is already there: {self._plugins[name].module}")
        record = record or Plugin(name, getattr(plugin, "__name__", type(plugin).__qualname__))
        location = getattr(plugin, "__file__", None)
        hash(plugin)  # pluggy keeps plugins in sets; an unhashable one would break calls to all the others
        self.declare(plugin)
        try:
            began = time.perf_counter()
            self._hooks.register(plugin, name)
            self._check_hooks(plugin)
            components = tuple(self._manifest(name))
            refuse_undeclared(components)
        except BaseException:
            if self._hooks.has_plugin(name):
                self._hooks.unregister(name=name)
            raise
        seconds = record.seconds + time.perf_counter() - began
        self._plugins[name] = replace(record, components=components, location=location, seconds=seconds)
        return self._plugins[name]

    def declare(self, plugin: Any) -> None:
        """Add the hooks that a plugin declares for other plugins to implement, unless they are known already."""
        names = [n for n in dir(plugin) if n.startswith("mmspec_") and self._hooks.parse_hookspec_opts(plugin, n)]
        if set(names) - set(self._declared()):
            self._hooks.add_hookspecs(plugin)

    def unregister(self, name: str) -> None:
        """Forget a plugin."""
        if name not in self._plugins:
            raise ValueError(unknown("plugin", name, self._plugins))
        if self._hooks.has_plugin(name):
            self._hooks.unregister(name=name)
        del self._plugins[name]

    def note(self, record: Plugin, cause: BaseException | None = None) -> None:
        """Keep a record of a plugin that is blocked or broken; a broken one raises under `MMSPEC_STRICT`."""
        if record.error and switches.strict():
            raise PluginError(f"plugin {record.name!r} ({record.module}): {record.error}") from cause
        name = record.name if record.name not in self._plugins else f"{record.name} ({record.module})"
        self._plugins[name] = replace(record, name=name)

    def plugins(self) -> tuple[Plugin, ...]:
        """Every plugin in the order of loading, the broken and the blocked included."""
        return tuple(self._plugins.values())

    def components(self, kind: str | None = None) -> tuple[Any, ...]:
        """The specs of a kind, or of all kinds, in the order of loading."""
        everything = (c for plugin in self._plugins.values() for c in plugin.components)
        return tuple(c for c in everything if kind in (None, c.kind))

    def get(self, kind: str, name: str, near: tuple[str, ...] = ()) -> Any:
        """Look a component's spec up, by its kind and by `name` or `plugin:name`; of several of one name, the first of
        the plugins in `near` that has it wins.
        """
        if kind not in KINDS:
            raise ValueError(unknown("kind of component", kind, KINDS))
        if not isinstance(name, str):
            raise TypeError(f"a {kind} is looked up by its name, a string; not by {name!r}")
        owner, _, plain = name.rpartition(":")
        if owner and owner not in self._plugins:
            raise ValueError(unknown("plugin", owner, self._plugins) + self._failures())
        found = [c for c in self.components(kind) if c.name == plain and owner in ("", c.owner)]
        found = next(([c] for owner in near for c in found if c.owner == owner), found)
        if len(found) == 1:
            return found[0]
        raise ValueError(self._clash(found) if found else self._absent(kind, name, owner, plain))

    def target_for(self, model: object) -> TargetSpec | None:
        """The target that some plugin says fits a live model, or None; plugins that came last are asked first, those
        that said `trylast=True` last of all.
        """
        hooked = self._hooks.hook.mmspec_target_for.get_hookimpls()
        for name in [implementation.plugin_name for implementation in reversed(hooked)]:
            with self.blaming(name, "mmspec_target_for"):
                answer = self.call(name, "mmspec_target_for", model=model)
                if answer is not None:
                    target: TargetSpec = self.get("target", answer, (name, CORE))
                    return target
        return None

    def target_of(self, architectures: Collection[str]) -> TargetSpec | None:
        """The target whose pipeline loads stored models of these classes, or None; plugins that came last win."""
        targets = reversed(self.components("target"))
        return next((target for target in targets if target.architectures.intersection(architectures)), None)

    def target_asking(self, names: Iterable[str]) -> TargetSpec | None:
        """The target that asks for something of these names beside its model, or None; plugins that came last win."""
        targets, given = reversed(self.components("target")), set(names)
        return next((target for target in targets if target.asks.keys() & given), None)

    def adapters_for(self, model: object) -> list[AdapterSpec]:
        """The adapters that take a live object."""
        found = []
        for adapter in self.components("adapter"):
            with self.blaming(adapter.owner, f"the adapter {adapter.name!r}"):
                if adapter.takes(model):
                    found.append(adapter)
        return found

    def ask(self, name: str, hook: str, **arguments: Any) -> Any:
        """Call one plugin's hook, ours or its own; None where it has no such hook. A failure is noted on it and harms
        no other.
        """
        with self.blaming(name, hook):
            return self.call(name, hook, **arguments)
        return None

    @contextmanager
    def blaming(self, name: str, hook: str) -> Iterator[None]:
        """A block whose errors are noted on a plugin, with a warning; it raises under `MMSPEC_STRICT`."""
        try:
            yield
        # A hook that calls sys.exit() is as broken as one that raises.
        except (Exception, SystemExit) as error:
            said = f"plugin {name!r} failed in {hook}: {one_line(error)}"
            if switches.strict():
                raise PluginError(said) from error
            self._plugins[name] = replace(self._plugins[name], error=f"{hook}: {describe(error)}")
            warn(said)

    def call(self, name: str, hook: str, **arguments: Any) -> Any:
        """Call one plugin's hook and let its errors through; None where the plugin has no such hook."""
        if not self._hooks.has_plugin(name):
            return None
        others = [p for n, p in self._hooks.list_name_plugin() if n != name]
        return self._hooks.subset_hook_caller(hook, others)(**arguments)

    def _manifest(self, name: str) -> Iterator[Spec]:
        seen: set[tuple[str, str]] = set()
        for offered in self.call(name, "mmspec_components"):
            for component in offered:
                # A subclass could answer otherwise each time that it is asked.
                if type(component) not in SPECS:
                    kinds = ", ".join(spec.__name__ for spec in SPECS)
                    raise TypeError(f"mmspec_components() yields specs only ({kinds}), not {component!r}")
                if len(seen) == MOST:
                    raise ValueError(f"plugin {name!r} offers more than {MOST} components")
                if (component.kind, component.name) in seen:
                    raise ValueError(f"{component.kind} {component.name!r} is given twice by plugin {name!r}")
                seen.add((component.kind, component.name))
                yield replace(component, owner=name)

    def _declared(self) -> list[str]:
        callers = (c for c in vars(self._hooks.hook).values() if isinstance(c, pluggy.HookCaller))
        return [c.name for c in callers if c.has_spec()]

    def _check_hooks(self, plugin: object) -> None:
        for caller in self._hooks.get_hookcallers(plugin) or ():
            mine = [i for i in caller.get_hookimpls() if i.plugin is plugin and not i.optionalhook]
            if mine and not caller.has_spec():
                raise ValueError(unknown("hook", caller.name, self._declared()))

    def _clash(self, found: list[Spec]) -> str:
        owners = " and ".join(repr(c.owner) for c in found)
        ways = " or ".join(repr(c.qualified) for c in found)
        return f"{found[0].kind} {found[0].name!r} is offered by plugins {owners}; write {ways}"

    def _absent(self, kind: str, name: str, owner: str, plain: str) -> str:
        message = unknown(kind, name, (c.qualified if owner else c.name for c in self.components(kind)))
        elsewhere = sorted({c.kind for c in self.components() if c.name == plain})
        kinds = " and ".join(f"an {kind}" if kind == "adapter" else f"a {kind}" for kind in elsewhere)
        also = f". There is {kinds} of that name" if elsewhere and not owner else ""
        return message + also + self._failures()

    def _failures(self) -> str:
        broken = [p.name for p in self._plugins.values() if p.error]
        return f". Not loaded: {', '.join(broken)} (`mmspec plugins` says why)" if broken else ""
