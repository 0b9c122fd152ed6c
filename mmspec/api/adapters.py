"""Live objects that keep their own loop, such as diffusers pipelines: an adapter enables them inside it.

`mmspec.registry.AdapterSpec` says what an adapter is.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol, runtime_checkable

from mmspec.api.build import budget
from mmspec.api.choice import AUTO
from mmspec.api.refusals import MEANT
from mmspec.registry import AdapterSpec
from mmspec.registry.suggest import unknown

HANDLE = "_mmspec_enabled"
"""The attribute of a live object that holds the handle while the object is enabled."""


@runtime_checkable
class Replaceable(Protocol):
    """A handle that gives way where its object is enabled again, as when a notebook's cell is run twice."""

    @property
    def held(self) -> list[str]:
        """The reason why it may not give way now, such as an open `with` block; empty where it may."""

    def disable(self) -> None: ...


BLOCK, RUNNING = "its `with` block is still open", "a call of it is running"
"""The reason why a handle is held."""


def make_way(model: Any, handle: Any) -> None:
    """Undo what an earlier `enable` did to a live object.

    Raises:
        ValueError: The handle is held, or cannot give way.
    """
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
    """Enable such an object.

    `auto` takes the first of the adapters; `parts` is what else `enable` takes by name, of which adapters have none.

    Returns:
        The handle: a context manager with `report`, `method`, `why` and `disable()`.

    Raises:
        ValueError: No adapter of that name takes the object, or an argument has no meaning here.
    """
    chosen = next((a for a in adapters if method in (AUTO, a.name, a.qualified)), None)
    kind = type(model).__name__
    if chosen is None:
        fit = ", ".join(adapter.name for adapter in adapters)
        raise ValueError(f"{method!r} does not fit a {kind}, which keeps its own loop. Methods that fit: {fit}")
    k, _ = budget(k, options.pop("num_speculative_tokens", None), [(chosen.k, chosen.name)])
    given = [name for name, value in parts.items() if value is not None] + list(options)
    if given:
        hints = "".join(f"; {unknown('argument', name, ('method', 'k'), MEANT)}" for name in options)
        raise ValueError(f"{chosen.name} takes k= and no {', no '.join(f'{name}=' for name in given)}{hints}")
    why = f"{chosen.name}, which is for such objects as a {kind}" if method == AUTO else ""
    return chosen.load()(model, method=chosen.name, k=k, why=why)
