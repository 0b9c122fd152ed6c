"""Arguments of our commands that none of them can use, refused before any loads anything: numbers, devices, names."""

import functools
import math
from collections.abc import Callable
from typing import Any

from mmspec.registry import installed
from mmspec.registry.matching import named

LARGEST = 2**63 - 1
"""Of a seed, a size or a count: what a tensor of integers can hold."""


def checked(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that refuses what is wrong whatever else is given.

    Args:
        command: The function behind a command; parameters of the names in `CHECKS` are taken for what these say.
    """

    @functools.wraps(command)
    def run(*args: Any, **given: Any) -> Any:
        for name, value in given.items():
            refuse_number(name, value)
            if name in CHECKS and isinstance(value, str):
                CHECKS[name](value)
        return command(*args, **given)

    return run


def refuse_number(name: str, value: Any) -> None:
    """Refuse a number that is not finite, or larger than `LARGEST`.

    Raises:
        ValueError: Names the option.
    """
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{option} is a finite number, not {value}")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError(f"{option} is at most {LARGEST}, which is 2^63 - 1, in either direction")


def refuse_device(device: str) -> None:
    """Refuse a device that this machine does not have; `cpu` is there, and no torch is loaded to say so.

    Raises:
        ValueError: Names it, and what there is.
    """
    if device != "cpu":
        from mmspec.hosts import devices

        devices.refuse_device(device)


def refuse_method(name: str) -> None:
    """Refuse what is no method. Not among `CHECKS`, since benchmarks take names of their own, too.

    Raises:
        ValueError: It is unknown or ambiguous.
    """
    named(installed(), name)


def refuse_rule(name: str) -> None:
    """Refuse what is no rule.

    Raises:
        ValueError: It is unknown or ambiguous.
    """
    installed().get("rule", name)


def refuse_policy(name: str) -> None:
    """Refuse what is no policy.

    Raises:
        ValueError: It is unknown.
    """
    from mmspec.api.policies import options_of

    options_of(name)


CHECKS: dict[str, Callable[[str], None]] = {
    "device": refuse_device,
    "rule": refuse_rule,
    "policy": refuse_policy,
}
