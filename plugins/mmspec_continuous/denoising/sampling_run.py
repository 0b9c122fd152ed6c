"""One sampling run of a diffusion pipeline, with drafted steps between its denoiser and its scheduler.

The pipeline keeps its loop. When it calls its denoiser at x_t and x_t is the drafted state, the prediction is known
already; else one network call makes it, together with those at the next drafted states. When it calls its scheduler for
x_{t-1} ~ N(mean, sigma²) and a state was drafted for that step, x_{t-1} is coupled with it by reflection.

Guarantee: every step has the scheduler's distribution given all steps before it, and so has the whole trajectory, up to
the last digits in which a batched network call differs from a single one. A row's distribution and its drafts do not
depend on the batch; the network is called when any row needs it, for those rows only.
Knob: `k` (longer drafts: fewer calls, each on up to `k + 1` times the states; what follows a refused state is lost).

Noise comes from the `generator` that the scheduler's step is called with, or torch's own. A network call draws one
normal of the state's shape per drafted step. A step with drafts draws one uniform per coupled row, then one normal of
the state's shape per row that is not coupled. A step without drafts draws what the scheduler draws.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import Gaussian
from mmspec.core.report import Report
from mmspec.registry.warn import warn
from mmspec_continuous.denoising.denoiser_call import DenoiserCall, UnsupportedCall, equal_nests
from mmspec_continuous.denoising.drafting import (
    GeneratorNoise,
    Prediction,
    Predictions,
    by_step,
    draft_steps,
    guided_prediction,
)
from mmspec_continuous.denoising.schedulers import (
    ConstantNoise,
    GaussianSteps,
    clean_of,
    fork,
    sample_of,
    scaled,
    supported_list,
    with_sample,
)


@dataclass
class DenoisingReport(Report):
    """A report whose units are denoising steps and whose passes are network calls, guidance's copies a part of one;
    `acceptance_length` is steps per call of a row, the first call not counted.
    """

    steps: int = 0  # denoising steps of the call
    calls: int = 0  # network calls, one after another, the first included

    @property
    def saved(self) -> int:
        """Network calls that plain denoising would have made in addition."""
        return self.steps - self.calls

    def count_call(self, rows: int) -> None:
        """Count a network call that was made for so many rows."""
        self.calls += 1
        if self.calls > 1:
            self.rounds += 1
            self.row_rounds += rows

    def __str__(self) -> str:
        return (
            f"{self.method} ({self.exactness}): {self.steps} steps in {self.calls} network calls, {self.saved} saved; "
            f"acceptance length {self.acceptance_length:.2f}, acceptance rate {self.acceptance_rate:.2f}; "
            f"draft {self.seconds['draft']:.2f} s, network {self.seconds['verify']:.2f} s"
        )


_STEP = ("model_output", "timestep", "sample", "generator", "return_dict")


class SamplingRun:
    """From the first noise to the sample; at most `k` steps are drafted per network call."""

    def __init__(self, scheduler: Any, step: Callable[..., Any], k: int, report: DenoisingReport) -> None:
        self.scheduler, self.k, self.report = scheduler, k, report
        self._step, self._signature = step, inspect.signature(step)
        self._state: Tensor | None = None  # what the scheduler returned last
        self._plain = False  # no more drafts in this run
        self._call: DenoiserCall | None = None  # the last one
        self._output: Any = None  # what the denoiser returned last
        self._called = False  # whether the denoiser was called since the last step

    def denoise(
        self, network: Callable[..., Any], signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """The denoiser's output for a call of the pipeline: known already, or computed with the steps that follow."""
        again, self._called = self._called, True
        if self._state is not None and not self._plain:
            try:
                if again:
                    raise UnsupportedCall("the denoiser is called more than once a step")
                self._output = self._predicted(network, DenoiserCall.read(signature, len(self._state), args, kwargs))
                return self._output
            except UnsupportedCall as why:
                self._stop_drafting(str(why))
        self.report.count_call(self.report.rows)
        with self.report.phase("prefill" if self._state is None else "verify"):
            self._output = network(*args, **kwargs)
        return self._output

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """The scheduler's step, coupled where a state was drafted for it; arguments and result are the scheduler's."""
        bound = self._signature.bind(*args, **kwargs)
        output, t, x = (bound.arguments[name] for name in _STEP[:3])
        options = {name: value for name, value in bound.arguments.items() if name not in _STEP}
        if self._state is None:
            self._start(t, x, options)
        elif not torch.equal(self._state, x):
            self._stop_drafting("the states are changed between two steps")
        if output.shape != x.shape:
            self._stop_drafting(f"the scheduler is given predictions {list(output.shape)} of states {list(x.shape)}")
        self._options, self._generator = options, bound.arguments.get("generator")
        drafted = None if self._plain else self._predictions.at.get(self._index + 1)
        clean = None if self._plain else clean_of(self.scheduler, self._index, output, x)
        if drafted is None or not bool(drafted.valid.any()):
            result = self._step(*args, **kwargs)
            same = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        else:
            assert clean is not None, "a plain run has no drafts"
            result, same = self._coupled(bound, drafted)
            clean = self._newest(clean, output, drafted, drafted.valid & ~same)
        self._advance(sample_of(result), clean, same)
        return result

    def _start(self, t: Any, x: Tensor, options: dict[str, Any]) -> None:
        """The first step, at timestep `t` from states `x [batch, *unit]`."""
        times = self.scheduler.timesteps
        found = (times == torch.as_tensor(t).to(times.device)).nonzero().flatten()
        self._predictions, self._clean = Predictions(len(x)), x
        self._index = int(found[0]) if len(found) else 0
        if not len(found):
            self._stop_drafting("the scheduler's step is called at a time that is none of its timesteps")
        elif options.get("per_token_timesteps") is not None:
            self._stop_drafting("every token has a time of its own")
        elif self._index + 1 < len(times) and not GaussianSteps(self.scheduler, options).sigma(t, x) > 0:
            name, how = type(self.scheduler).__name__, ", ".join(f"{k}={v}" for k, v in options.items())
            raise ValueError(
                f"speculative denoising needs noise in every step, and {name} called with {how or 'these settings'} "
                f"adds none. Those that work: {supported_list()}"
            )
        self._accepted = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        self._width = torch.zeros_like(self._accepted)
        self.report.rows = len(x)

    def _stop_drafting(self, why: str) -> None:
        """No more drafts in this run, with a warning the first time."""
        if not self._plain:
            warn(f"speculative denoising stops in this call, whose steps go on plainly: {why}")
        self._plain = True
        self._predictions.at.clear()

    def _predicted(self, network: Callable[..., Any], call: DenoiserCall) -> Any:
        """The denoiser's output at the present states; the network runs for the rows where it is not known."""
        assert self._state is not None
        t = self.scheduler.timesteps[self._index]
        call = call.at_state(scaled(fork(self.scheduler), self._state, t), t)
        last = self._call
        if last is not None and (last.copies != call.copies or not equal_nests(last.conditions, call.conditions)):
            raise UnsupportedCall("the denoiser's conditions change from step to step")
        self._call = call
        rows = self._predictions.missing(self._index, self._state.device)
        if len(rows):
            self._predict(network, call, rows)
        return self._predictions.at[self._index].output

    def _predict(self, network: Callable[..., Any], call: DenoiserCall, rows: Tensor) -> None:
        """Call the network at the present and at newly drafted states of some rows."""
        assert self._state is not None
        x, index = self._state[rows], self._index
        with self.report.phase("draft"):
            steps = GaussianSteps(self.scheduler, self._options, rows)
            most = min(self.k, len(self.scheduler.timesteps) - 1 - index)
            draft = draft_steps(steps, index, most, x, self._clean[rows], self._noise(rows))
            times = self.scheduler.timesteps[index : index + len(draft)]
            batched = call.at_steps([drafted.scaled for drafted in draft], times, rows)
        with self.report.phase("verify"):
            output = network(*batched.args, **batched.kwargs)
        self.report.count_call(len(rows))
        self._count_drafts(rows, len(draft) - 1)
        copied = call.in_copies(rows)
        for depth, prediction in enumerate(by_step(draft, output, len(copied))):
            self._predictions.put(index + depth, rows, copied, prediction)

    def _coupled(self, bound: inspect.BoundArguments, drafted: Prediction) -> tuple[Any, Tensor]:
        """The scheduler's step with draws of ours: its result, and `[batch]` bool: rows that took the drafted state."""
        x = bound.arguments["sample"]
        sigma = GaussianSteps(self.scheduler, self._options).sigma(bound.arguments["timestep"], x)
        with ConstantNoise(0.0):
            result = self._step(*bound.args, **bound.kwargs)
        mean = sample_of(result)
        y = mean.clone()
        rows = drafted.valid.nonzero().flatten() if sigma == drafted.sigma else torch.arange(0, device=x.device)
        rest = torch.ones_like(drafted.valid).index_fill(0, rows, False).nonzero().flatten()
        if len(rows):
            p, q = (Gaussian(m[rows][:, None].float(), sigma) for m in (mean, drafted.mean))
            y[rows] = p.couple(q, drafted.state[rows][:, None].float(), self._noise(rows))[:, 0].to(y.dtype)
        if len(rest):
            y[rest] = (mean[rest].float() + sigma * self._noise(rest).normal(*x.shape[1:])[:, 0]).to(y.dtype)
        same = drafted.valid & (y == drafted.state).flatten(1).all(1)
        return with_sample(result, y), same

    def _newest(self, clean: Tensor, output: Tensor, drafted: Prediction, refused: Tensor) -> Tensor:
        """The clean sample to freeze: in rows of `refused [batch]` the one predicted at the refused state."""
        prediction = guided_prediction(drafted.output, self._output, output)
        if prediction is None:
            return clean
        newer = clean_of(self.scheduler, self._index + 1, prediction, drafted.state)
        return torch.where(refused.reshape(-1, *(1,) * (clean.dim() - 1)), newer, clean)

    def _advance(self, y: Tensor, clean: Tensor | None, same: Tensor) -> None:
        """The scheduler has moved on to states `y`; rows of `same [batch]` are at the drafted ones."""
        self.report.steps += 1
        self.report.emitted += len(y)
        self._accepted += same
        self._index += 1
        self._called = False
        self._state = y
        if clean is not None:
            self._clean = clean
            self._predictions.advance(self._index, same)
        if self._index == len(self.scheduler.timesteps):
            self._count_drafts(torch.arange(len(y), device=y.device), 0)
            self._predictions.at.clear()
            self._state = self._call = self._output = None

    def _noise(self, rows: Tensor) -> GeneratorNoise:
        return GeneratorNoise(self._generator, rows.tolist(), rows.device)

    def _count_drafts(self, rows: Tensor, width: int) -> None:
        """Count the last drafts of these rows, which are over; new ones of `width` steps begin."""
        before = self._width[rows]
        nodes = torch.arange(int(before.max()) + 1, device=rows.device)
        self.report.count(nodes <= before[:, None], self._accepted[rows], torch.ones_like(rows, dtype=torch.bool))
        self._accepted[rows], self._width[rows] = 0, width
