"""Checks of arguments that hold for all our commands, made before anything is loaded: numbers, devices, names."""

import functools
import math
from collections.abc import Callable
from typing import Any

from mmspec.registry import installed
from mmspec.registry.matching import named

LARGEST = 2**63 - 1
"""Largest seed, size or count: the largest 64-bit integer of a tensor."""


def checked(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def run(*args: Any, **named_arguments: Any) -> Any:
        for name, value in named_arguments.items():
            refuse_number(name, value)
            if name in CHECKS and isinstance(value, str):
                CHECKS[name](value)
        return command(*args, **named_arguments)

    return run


def refuse_number(name: str, value: Any) -> None:
    """Refuse a number that is not finite, or larger than `LARGEST`.

    Raises:
        ValueError: The number is one of these; names the option.
    """
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{option} is a finite number, not {value}")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError(f"{option} is at most {LARGEST}, which is 2^63 - 1, in either direction")


def refuse_device(device: str) -> None:
    """Refuse a device that this machine does not have; torch is not loaded for `cpu`.

    Raises:
        ValueError: The device does not exist; names those that do.
    """
    if device != "cpu":
        from mmspec.hosts import devices

        devices.refuse_device(device)


def refuse_method(name: str) -> None:
    """Refuse a name that is no method. It is not among `CHECKS`, since benchmarks accept further names.

    Raises:
        ValueError: The name is unknown or ambiguous.
    """
    named(installed(), name)


def refuse_rule(name: str) -> None:
    """Refuse a name that is no rule.

    Raises:
        ValueError: The name is unknown or ambiguous.
    """
    installed().get("rule", name)


def refuse_policy(name: str) -> None:
    """Refuse a name that is no policy.

    Raises:
        ValueError: The name is unknown.
    """
    from mmspec.api.policies import options_of

    options_of(name)


CHECKS: dict[str, Callable[[str], None]] = {
    "device": refuse_device,
    "rule": refuse_rule,
    "policy": refuse_policy,
}
