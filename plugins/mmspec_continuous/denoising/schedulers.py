"""One step of a diffusers scheduler as a Gaussian, read off the scheduler's own `step`.

A scheduler that adds noise takes x to mean(output, t, x) + sigma(t) e. The scheduler's own code computes both: with
e = 0 it returns the mean; with e = 1 and a state, an output and a history of zeros it returns sigma. Known by class are
only which schedulers take such steps, with a sigma that depends on the step alone, and how a network's output is turned
into a predicted clean sample.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmspec.kits.pictures.steered_diffusion import marginal

PREDICTIONS = ("epsilon", "sample", "v_prediction", "flow")
_FIXED = ("fixed_small", "fixed_small_log", "fixed_large")


class ConstantNoise(TorchFunctionMode):
    """A context in which `torch.randn` returns a constant and advances no generator, in the current thread only."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.randn:
            return func(*args, **(kwargs or {}))
        rest = {name: value for name, value in (kwargs or {}).items() if name != "generator"}
        return torch.full(args[0], self.value, **rest)


@dataclass(frozen=True)
class Support:
    """Facts about a class of schedulers that can be used."""

    # Why this scheduler of the class cannot be used; "" where it can
    problem: Callable[[Any], str] = lambda scheduler: ""
    note: str = ""  # what its configuration or its call must have, for the list in messages
    prediction: str | None = None  # what the network predicts; None: its configuration says so


def _flow_problem(scheduler: Any) -> str:
    return "" if scheduler.config.stochastic_sampling else "stochastic_sampling=False adds no noise"


def _variance_problem(scheduler: Any) -> str:
    kind = scheduler.variance_type
    if kind in ("learned", "learned_range"):
        return f"its variance is {kind}: it depends on the state, and two different Gaussians have no reflection"
    return "" if kind in _FIXED else f"variance_type={kind!r} is no variance; use {' or '.join(_FIXED)}"


def _solver_problem(scheduler: Any) -> str:
    if not scheduler.config.algorithm_type.startswith("sde-"):
        return f"algorithm_type={scheduler.config.algorithm_type!r} adds no noise"
    return "use_flow_sigmas=True is not supported" if scheduler.config.use_flow_sigmas else ""


SUPPORTED = {
    "DDPMScheduler": Support(_variance_problem, "fixed variance"),
    "DDPMParallelScheduler": Support(_variance_problem, "fixed variance"),
    "DDIMScheduler": Support(note="called with eta > 0"),
    "DDIMParallelScheduler": Support(note="called with eta > 0"),
    "EulerAncestralDiscreteScheduler": Support(),
    "DPMSolverMultistepScheduler": Support(_solver_problem, "algorithm_type='sde-dpmsolver++' or 'sde-dpmsolver'"),
    # Flow matching (Lipman et al., arXiv 2210.02747): the network predicts noise minus clean sample, and a step takes
    # the predicted clean sample x0 to (1 - sigma') x0 + sigma' e.
    "FlowMatchEulerDiscreteScheduler": Support(_flow_problem, "stochastic_sampling=True", "flow"),
}


def supported_list() -> str:
    """The schedulers that can be used, for messages."""
    return "; ".join(f"{name} ({kind.note})" if kind.note else name for name, kind in SUPPORTED.items())


def refuse(scheduler: Any) -> None:
    """Refuse a scheduler whose steps are not Gaussians of known sigma."""
    name = type(scheduler).__name__
    why = "its steps are not known to be Gaussian: it adds no noise, or noise of another kind"
    if name in SUPPORTED:
        why = SUPPORTED[name].problem(scheduler)
    known = SUPPORTED.get(name)
    prediction = known.prediction if known and known.prediction else getattr(scheduler.config, "prediction_type", None)
    if not why and prediction not in PREDICTIONS:
        why = f"prediction_type={prediction!r} is none of {', '.join(PREDICTIONS)}"
    if why:
        raise ValueError(f"speculative denoising cannot use {name}: {why}. Those that work: {supported_list()}")


def refuse_default_call(pipe: Any, method: str) -> None:
    """Refuse a pipeline whose call, with the arguments that it has by default, takes steps without noise."""
    takes = inspect.signature(pipe.scheduler.step).parameters
    call = inspect.signature(type(pipe).__call__).parameters if callable(pipe) else {}
    options = {"eta": call["eta"].default} if "eta" in takes and "eta" in call else {}
    if SUPPORTED[type(pipe.scheduler).__name__].prediction or inspect.Parameter.empty in options.values():
        return  # the configuration, or every call, says how much noise
    twin, zero = fork(pipe.scheduler), torch.zeros(1, 1, 1, 1)
    twin.set_timesteps(2)
    scaled(twin, zero, twin.timesteps[0])
    if not GaussianSteps(twin, options).sigma(twin.timesteps[0], zero) > 0:
        name, how = type(pipe.scheduler).__name__, "".join(f" ({key}={value})" for key, value in options.items())
        raise ValueError(
            f"speculative denoising needs noise in every step, and a {type(pipe).__name__} with {name} adds none as it "
            f"is called by default{how}: call it with noise, and name the method, mmspec.enable(pipe, {method!r}). "
            f"Those that work: {supported_list()}"
        )


def fork(scheduler: Any, rows: Tensor | None = None) -> Any:
    """A copy of a scheduler, at the same step and for `rows [m]` of the batch (None: all), whose steps leave the
    original as it is.
    """
    twin = copy.copy(scheduler)
    for name, value in list(vars(twin).items()):
        if name in ("step", "set_timesteps"):
            del twin.__dict__[name]
        elif isinstance(value, list):
            selected = [v[rows] if rows is not None and isinstance(v, Tensor) and v.dim() else v for v in value]
            twin.__dict__[name] = selected
    return twin


def scaled(scheduler: Any, x: Tensor, t: Tensor) -> Tensor:
    """The states `x` as the network sees them at timestep `t`; where schedulers do not scale, as they are."""
    seen: Tensor = scheduler.scale_model_input(x, t) if hasattr(scheduler, "scale_model_input") else x
    return seen


class GaussianSteps:
    """The next steps of a scheduler as Gaussians, with further arguments of its `step`, such as `eta`; the scheduler
    itself is not moved on.
    """

    def __init__(self, scheduler: Any, options: dict[str, Any], rows: Tensor | None = None) -> None:
        self.scheduler, self._options = fork(scheduler, rows), options  # a fork, which `mean` moves on by one step

    def sigma(self, t: Tensor, like: Tensor) -> float:
        """Standard deviation of the next step, at timestep `t`, of states with the dtype and dimensions of `like`."""
        twin = fork(self.scheduler)
        zero = like.new_zeros(1, 1, *(1,) * (like.dim() - 2))
        if hasattr(twin, "model_outputs"):  # the history of a multistep solver
            twin.model_outputs = [None if output is None else zero for output in twin.model_outputs]
        with ConstantNoise(1.0):
            return float(twin.step(zero, t, zero, **self._options, return_dict=False)[0])

    def mean(self, output: Tensor, t: Tensor, x: Tensor) -> Tensor:
        """Take the next step without its noise: the mean, `[batch, *unit]`."""
        with ConstantNoise(0.0):
            mean: Tensor = self.scheduler.step(output, t, x, **self._options, return_dict=False)[0]
        return mean


def clean_of(scheduler: Any, index: int, output: Tensor, x: Tensor) -> Tensor:
    """The clean sample that the network's output at step `index` predicts from the state `x`."""
    prediction_type, a, s, size = _parametrization(scheduler, index)
    if prediction_type == "sample":
        return output
    if prediction_type == "flow":
        return x - s * output
    return (x - s * output) / a if prediction_type == "epsilon" else (a * x / size - s * output) / size


def output_of(scheduler: Any, index: int, clean: Tensor, x: Tensor) -> Tensor:
    """The network output at step `index` that predicts a clean sample: the inverse of `clean_of`."""
    prediction_type, a, s, size = _parametrization(scheduler, index)
    if prediction_type == "sample":
        return clean
    if prediction_type == "flow":
        return (x - clean) / s
    return (x - a * clean) / s if prediction_type == "epsilon" else (a * x / size - size * clean) / s


def _parametrization(scheduler: Any, index: int) -> tuple[str, Tensor, Tensor, Tensor]:
    """Kind of prediction, and (a, s, sqrt(a² + s²)) of the states a x0 + s noise at a step."""
    known = SUPPORTED[type(scheduler).__name__]
    a, s = marginal(scheduler, index)
    return known.prediction or scheduler.config.prediction_type, a, s, (a * a + s * s) ** 0.5


def sample_of(result: Any) -> Tensor:
    """The next state in what a scheduler's `step` returned."""
    sample: Tensor = result[0] if isinstance(result, tuple) else result.prev_sample
    return sample


def with_sample(result: Any, sample: Tensor) -> Any:
    """The result of a scheduler's `step`, with another next state."""
    if isinstance(result, tuple):
        return (sample, *result[1:])
    result.prev_sample = sample
    return result
