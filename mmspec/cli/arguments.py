"""What no command can use is refused before any begins, whoever brings the command: numbers, devices."""

import functools
import math
from collections.abc import Callable
from typing import Any

import typer

LARGEST = 2**63 - 1
"""Of a seed, a size or a count: what a tensor of integers can hold."""


def checked(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that refuses numbers that are none, or too large for any tensor, and devices that are not there.

    Args:
        command: The function behind a command; a parameter `device` is taken for one.
    """

    @functools.wraps(command)
    def run(*args: Any, **given: Any) -> Any:
        for name, value in given.items():
            refuse_number(name, value)
            if name == "device" and isinstance(value, str):
                refuse_device(value)
        return command(*args, **given)

    return run


def refuse_number(name: str, value: Any) -> None:
    """Refuse a number that is not finite, or larger than `LARGEST`.

    Raises:
        typer.BadParameter: Names the option.
    """
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, float) and not math.isfinite(value):
        raise typer.BadParameter(f"{option} is a finite number, not {value}")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise typer.BadParameter(f"{option} is at most {LARGEST}, which is 2^63 - 1, not {value:.0e}".replace("+", ""))


def refuse_device(device: str) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        typer.BadParameter: Names it, and what there is.
    """
    if device == "cpu":
        return
    import torch

    try:
        computed = (torch.ones(1, device=device) + 1).item()  # on `meta` there is nothing to read
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        there = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        raise typer.BadParameter(f"there is no device {device!r}; there is {', '.join(there)}") from error
    assert computed == 2
