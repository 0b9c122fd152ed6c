"""Options of drafters with a trained head."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mmspec.kits.text.tree_form import TreeForm

Stored = TypeVar("Stored")


@dataclass(frozen=True)
class HeadOptions(TreeForm):
    """The head, and the form of its drafts."""

    model: Any = field(default=None, metadata={"help": "the head: a folder or a hub name"})
    probe: bool = field(default=True, metadata={"help": "whether the first call tries the head on its prompt"})


def head_of(model: Any, method: str, kind: type[Stored], read: Callable[[str], Stored]) -> Stored:
    """The head that a user named, or gave.

    Args:
        model: A folder, a hub name, or a head in memory.
        method: The name of the method, for messages.
        kind: The class of its heads.
        read: Reads one by name.

    Raises:
        ValueError: None was named, or it cannot be read.
        TypeError: It is something else.
    """
    if model is None:
        raise ValueError(f"{method} needs a head: drafter=<folder or hub name>, or the option model=")
    found = read(model) if isinstance(model, str) else model
    if not isinstance(found, kind):
        raise TypeError(f"the head is a folder or a hub name, not {type(found).__name__}")
    return found
