"""Options that several commands have, and checks of arguments before anything is loaded: numbers, devices, names."""

import functools
import math
from collections.abc import Callable
from typing import Annotated, Any

import typer

from mmspec.registry import installed
from mmspec.registry.matching import named

Method = Annotated[str, typer.Option(help="See `mmspec methods`.")]
Drafter = Annotated[str | None, typer.Option(help="A drafter's name or a smaller model.")]
RuleName = Annotated[str | None, typer.Option(help="Acceptance rule; default: the method's.")]
Drafted = Annotated[int | None, typer.Option("--num-speculative-tokens", "-k", min=0)]
PolicyName = Annotated[str | None, typer.Option(help="How many to draft: fixed, confidence, goodput, payoff.")]
Options = Annotated[list[str] | None, typer.Option(help="key=value of drafter, rule or policy; repeatable.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, …")]
Dtype = Annotated[str | None, typer.Option(help="Of the weights: float32 (the default), bfloat16, float16.")]

LARGEST = 2**63 - 1  # largest seed, size or count: the largest 64-bit integer of a tensor


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
    """Refuse a number that is not finite, or larger than `LARGEST`."""
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{option} is a finite number, not {value}")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError(f"{option} is at most {LARGEST}, which is 2^63 - 1, in either direction")


def refuse_device(device: str) -> None:
    """Refuse a device that this machine does not have; torch is not loaded for `cpu`."""
    if device != "cpu":
        from mmspec.hosts import devices

        devices.refuse_device(device)


def refuse_method(name: str) -> None:
    """Refuse a name that is no method. It is not among `CHECKS`, since benchmarks accept further names."""
    named(installed(), name)


def refuse_rule(name: str) -> None:
    """Refuse a name that is no rule."""
    installed().get("rule", name)


def refuse_policy(name: str) -> None:
    """Refuse a name that is no policy."""
    installed().get("policy", name)


CHECKS: dict[str, Callable[[str], None]] = {"device": refuse_device, "rule": refuse_rule, "policy": refuse_policy}
"""Checks by the name of a parameter, whichever command has it."""
