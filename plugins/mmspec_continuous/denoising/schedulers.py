"""One step of a diffusers scheduler as a Gaussian, read off the scheduler's own `step`.

A scheduler that adds noise takes x to mean(output, t, x) + sigma(t) e. Its own code is asked, not rewritten: with
e = 0 it returns the mean, and with e = 1 on a state, an output and a history of zeros, sigma. What remains to be known
by class is which of them are such Gaussians, with a sigma that depends on the step alone, and how a network's output is
read as a clean sample.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

PREDICTIONS = ("epsilon", "sample", "v_prediction")
_FIXED = ("fixed_small", "fixed_small_log", "fixed_large")


class Injected(TorchFunctionMode):
    """Within it, `torch.randn` is a constant and no generator is touched; other threads see nothing of it."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.randn:
            return func(*args, **(kwargs or {}))
        rest = {name: value for name, value in (kwargs or {}).items() if name != "generator"}
        return torch.full(args[0], self.value, **rest)


@dataclass(frozen=True)
class Kind:
    """What is known about a class of schedulers.

    Attributes:
        level: From (scheduler, index of a step) to (a, s): the state there is a x0 + s noise.
        fault: Why a scheduler of this class cannot be used, "" where it can.
        note: What its configuration or call must have, for the list.
    """

    level: Callable[[Any, int], tuple[Tensor, Tensor]]
    fault: Callable[[Any], str] = lambda scheduler: ""
    note: str = ""


def _by_product(scheduler: Any, index: int) -> tuple[Tensor, Tensor]:
    kept = scheduler.alphas_cumprod[int(scheduler.timesteps[index])]
    return kept**0.5, (1 - kept) ** 0.5


def _by_sigma(scheduler: Any, index: int) -> tuple[Tensor, Tensor]:
    return torch.ones(()), scheduler.sigmas[index]


def _by_solver(scheduler: Any, index: int) -> tuple[Tensor, Tensor]:
    a, s = scheduler._sigma_to_alpha_sigma_t(scheduler.sigmas[index])
    return a, s


def _variance_fault(scheduler: Any) -> str:
    kind = scheduler.variance_type
    if kind in ("learned", "learned_range"):
        return f"its variance is {kind}: it depends on the state, and two different Gaussians have no reflection"
    return "" if kind in _FIXED else f"variance_type={kind!r} is no variance; use {' or '.join(_FIXED)}"


def _solver_fault(scheduler: Any) -> str:
    if not scheduler.config.algorithm_type.startswith("sde-"):
        return f"algorithm_type={scheduler.config.algorithm_type!r} adds no noise"
    return "use_flow_sigmas=True is not supported" if scheduler.config.use_flow_sigmas else ""


WORKING = {
    "DDPMScheduler": Kind(_by_product, _variance_fault, "fixed variance"),
    "DDPMParallelScheduler": Kind(_by_product, _variance_fault, "fixed variance"),
    "DDIMScheduler": Kind(_by_product, note="called with eta > 0"),
    "DDIMParallelScheduler": Kind(_by_product, note="called with eta > 0"),
    "EulerAncestralDiscreteScheduler": Kind(_by_sigma),
    "DPMSolverMultistepScheduler": Kind(
        _by_solver, _solver_fault, "algorithm_type='sde-dpmsolver++' or 'sde-dpmsolver'"
    ),
}


def working() -> str:
    """The list of those that work, in words."""
    return "; ".join(f"{name} ({kind.note})" if kind.note else name for name, kind in WORKING.items())


def refuse(scheduler: Any) -> None:
    """Refuse a scheduler whose step is not a Gaussian of known sigma.

    Raises:
        ValueError: Says why, and lists those that work.
    """
    name = type(scheduler).__name__
    why = WORKING[name].fault(scheduler) if name in WORKING else "its steps are not known to be Gaussian: it adds no "
    if name not in WORKING:
        why += "noise, or noise of another kind"
    prediction = getattr(scheduler.config, "prediction_type", None)
    if not why and prediction not in PREDICTIONS:
        why = f"prediction_type={prediction!r} is none of {', '.join(PREDICTIONS)}"
    if why:
        raise ValueError(f"speculative denoising cannot use {name}: {why}. Those that work: {working()}")


def fork(scheduler: Any, rows: Tensor | None = None) -> Any:
    """A scheduler at the same step that may be stepped without the original's noticing, for `rows [m]` of the batch."""
    twin = copy.copy(scheduler)
    for name, value in list(vars(twin).items()):
        if name in ("step", "set_timesteps"):
            del twin.__dict__[name]
        elif isinstance(value, list):
            taken = [v[rows] if rows is not None and isinstance(v, Tensor) and v.dim() else v for v in value]
            twin.__dict__[name] = taken
    return twin


@dataclass
class Steps:
    """The Gaussians of a fork's next steps.

    Attributes:
        scheduler: A fork; `mean` moves it on.
        options: What else its `step` is called with, such as `eta`.
    """

    scheduler: Any
    options: dict[str, Any] = field(default_factory=dict)

    def sigma(self, t: Tensor, like: Tensor) -> float:
        """Standard deviation of the step that is next."""
        twin = fork(self.scheduler)
        zero = like.new_zeros(1, 1, *(1,) * (like.dim() - 2))
        if hasattr(twin, "model_outputs"):
            twin.model_outputs = [None if made is None else zero for made in twin.model_outputs]
        with Injected(1.0):
            return float(twin.step(zero, t, zero, **self.options, return_dict=False)[0])

    def mean(self, output: Tensor, t: Tensor, x: Tensor) -> Tensor:
        """Mean of the step that is next, which is then the one before: `[batch, *unit]`."""
        with Injected(0.0):
            mean: Tensor = self.scheduler.step(output, t, x, **self.options, return_dict=False)[0]
        return mean


def clean_of(scheduler: Any, index: int, output: Tensor, x: Tensor) -> Tensor:
    """The clean sample that a network's output at step `index` stands for."""
    a, s = WORKING[type(scheduler).__name__].level(scheduler, index)
    kind, size = scheduler.config.prediction_type, (a * a + s * s) ** 0.5
    if kind == "sample":
        return output
    return (x - s * output) / a if kind == "epsilon" else (a * x / size - s * output) / size


def output_of(scheduler: Any, index: int, clean: Tensor, x: Tensor) -> Tensor:
    """The output at step `index` that would stand for a clean sample: the inverse of `clean_of`."""
    a, s = WORKING[type(scheduler).__name__].level(scheduler, index)
    kind, size = scheduler.config.prediction_type, (a * a + s * s) ** 0.5
    if kind == "sample":
        return clean
    return (x - a * clean) / s if kind == "epsilon" else (a * x / size - size * clean) / s
