"""One sampling run of a pipeline, between its denoiser and its scheduler.

The pipeline keeps its loop. Its denoiser is asked for the prediction at x_t: if x_t is what was drafted, it is there;
else one network call makes it, and those at the next drafted states, too. Its scheduler is asked for x_{t-1} ~ N(mean,
sigma^2): where a state was drafted for it, x_{t-1} is coupled with that by reflection.

Guarantee: every step has the scheduler's distribution, given all before it, and so has the whole trajectory, up to the
last digits in which a batched network call differs from a single one. Every row walks alone: its distribution and its
drafts do not depend on the batch; the network is called when any row needs it, for those rows.
Knob: `k` (longer drafts, fewer calls, each on `k + 1` times the states; what lies behind a refused state is lost).

Noise comes from the `generator` that the scheduler's step is given, or torch's own. A network call draws one normal of
the state's shape per drafted step; a step draws one uniform a row where rows are coupled, and then one normal of the
state's shape for those that are not; a step without drafts draws what the scheduler draws.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import Gaussian
from mmspec.registry.warn import warn
from mmspec_continuous.denoising.asked import Asked, Unclear, alike, leaves
from mmspec_continuous.denoising.drafting import Chain, drafted, guided
from mmspec_continuous.denoising.noise import GeneratorNoise
from mmspec_continuous.denoising.report import DenoisingReport
from mmspec_continuous.denoising.schedulers import Injected, Steps, clean_of, fork, working
from mmspec_continuous.denoising.table import Level, Table

_STEP = ("model_output", "timestep", "sample", "generator", "return_dict")


class Walk:
    """From the first noise to the sample.

    Args:
        scheduler: The pipeline's.
        step: Its own `step`.
        k: Most steps to draft per network call.
        report: To fill.
    """

    def __init__(self, scheduler: Any, step: Callable[..., Any], k: int, report: DenoisingReport) -> None:
        self.scheduler, self.k, self.report = scheduler, k, report
        self._step, self._takes = step, inspect.signature(step)
        self._state: Tensor | None = None  # what the scheduler returned last
        self._closed = False
        self._asked: Asked | None = None
        self._raw: Any = None
        self._called = False  # since the last step

    def denoise(
        self, network: Callable[..., Any], takes: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """What the denoiser returns: known already, or made with what comes next."""
        again, self._called = self._called, True
        if self._state is not None and not self._closed:
            try:
                if again:
                    raise Unclear("the denoiser is called more than once a step")
                self._raw = self._known(network, Asked.read(takes, len(self._state), args, kwargs))
                return self._raw
            except Unclear as why:
                self._close(str(why))
        self._count(self.report.rows)
        with self.report.phase("prefill" if self._state is None else "verify"):
            self._raw = network(*args, **kwargs)
        return self._raw

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """The scheduler's step, coupled where a state was drafted for it."""
        bound = self._takes.bind(*args, **kwargs)
        output, t, x = (bound.arguments[name] for name in _STEP[:3])
        options = {name: value for name, value in bound.arguments.items() if name not in _STEP}
        if self._state is None:
            self._begin(t, x, options)
        elif not torch.equal(self._state, x):
            self._close("the states are changed between two steps")
        if output.shape != x.shape:
            self._close(f"the scheduler is given predictions {list(output.shape)} of states {list(x.shape)}")
        self._options, self._generator = options, bound.arguments.get("generator")
        level = None if self._closed else self._table.levels.get(self._index + 1)
        clean = None if self._closed else clean_of(self.scheduler, self._index, output, x)
        if level is None or not bool(level.held.any()):
            made = self._step(*args, **kwargs)
            same = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        else:
            made, same = self._coupled(bound, level)
            clean = self._newest(clean, output, level, level.held & ~same)
        self._arrive(_sample_of(made), clean, same)
        return made

    def _begin(self, t: Any, x: Tensor, options: dict[str, Any]) -> None:
        times = self.scheduler.timesteps
        found = (times == torch.as_tensor(t).to(times.device)).nonzero().flatten()
        self._table, self._clean = Table(len(x)), x
        self._index = int(found[0]) if len(found) else 0
        if not len(found):
            self._close("the scheduler's step is called at a time that is none of its timesteps")
        elif self._index + 1 < len(times) and not Steps(fork(self.scheduler), options).sigma(t, x) > 0:
            name, how = type(self.scheduler).__name__, ", ".join(f"{k}={v}" for k, v in options.items())
            raise ValueError(
                f"speculative denoising needs noise in every step, and {name} called with {how or 'these settings'} "
                f"adds none. Those that work: {working()}"
            )
        self._accepted = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        self._width = torch.zeros_like(self._accepted)
        self.report.rows = len(x)

    def _close(self, why: str) -> None:
        """No more drafts in this run."""
        if not self._closed:
            warn(f"speculative denoising stops in this call, whose steps go on plainly: {why}")
        self._closed = True
        self._table.levels.clear()

    def _known(self, network: Callable[..., Any], asked: Asked) -> Any:
        assert self._state is not None
        t = self.scheduler.timesteps[self._index]
        asked.refuse_another_state(fork(self.scheduler).scale_model_input(self._state, t), t)
        before = self._asked
        if before is not None and (before.copies != asked.copies or not alike(before.conditions, asked.conditions)):
            raise Unclear("the denoiser's conditions change from step to step")
        self._asked = asked
        rows = self._table.lacking(self._index, self._state.device)
        if len(rows):
            self._call(network, asked, rows)
        return self._table.levels[self._index].output

    def _call(self, network: Callable[..., Any], asked: Asked, rows: Tensor) -> None:
        """The network at the present and the drafted states of some rows, into the table."""
        assert self._state is not None
        x, index = self._state[rows], self._index
        with self.report.phase("draft"):
            steps = Steps(fork(self.scheduler, rows), self._options)
            most = min(self.k, len(self.scheduler.timesteps) - 1 - index)
            chain = drafted(steps, index, most, x, self._clean[rows], self._noise(rows))
            count = len(chain.states) + 1
            many = asked.many(chain.scaled[:count], self.scheduler.timesteps[index : index + count], rows)
        with self.report.phase("verify"):
            made = network(*many.args, **many.kwargs)
        self._count(len(rows))
        self._settle_counts(rows, count - 1)
        copied = asked.in_copies(rows)
        for depth, level in enumerate(_levels(x, chain, made, len(copied))):
            self._table.put(index + depth, rows, copied, level)

    def _coupled(self, bound: inspect.BoundArguments, level: Level) -> tuple[Any, Tensor]:
        """The scheduler's step with its draws from us, and which rows took what was drafted."""
        x = bound.arguments["sample"]
        sigma = Steps(fork(self.scheduler), self._options).sigma(bound.arguments["timestep"], x)
        with Injected(0.0):
            made = self._step(*bound.args, **bound.kwargs)
        mean = _sample_of(made)
        y = mean.clone()
        rows = level.held.nonzero().flatten() if sigma == level.sigma else level.held.nonzero().flatten()[:0]
        rest = torch.ones_like(level.held).index_fill(0, rows, False).nonzero().flatten()
        if len(rows):
            p, q = (Gaussian(m[rows][:, None].float(), sigma) for m in (mean, level.mean))
            y[rows] = p.couple(q, level.state[rows][:, None].float(), self._noise(rows))[:, 0].to(y.dtype)
        if len(rest):
            y[rest] = (mean[rest].float() + sigma * self._noise(rest).normal(*x.shape[1:])[:, 0]).to(y.dtype)
        same = level.held & (y == level.state).flatten(1).all(1)
        return _with_sample(made, y), same

    def _newest(self, clean: Tensor, output: Tensor, level: Level, refused: Tensor) -> Tensor:
        """The frozen prediction, where a drafted state was refused the one made for that."""
        seen = guided(level.output, self._raw, output)
        if seen is None:
            return clean
        better = clean_of(self.scheduler, self._index + 1, seen, level.state)
        return torch.where(refused.reshape(-1, *(1,) * (clean.dim() - 1)), better, clean)

    def _arrive(self, y: Tensor, clean: Tensor | None, same: Tensor) -> None:
        self.report.steps += 1
        self.report.emitted += len(y)
        self._accepted += same
        self._index += 1
        self._called = False
        self._state = y
        if clean is not None:
            self._clean = clean
            self._table.reach(self._index, same)
        if self._index == len(self.scheduler.timesteps):
            self._settle_counts(torch.arange(len(y), device=y.device), 0)
            self._table.levels.clear()
            self._state = self._asked = self._raw = None

    def _noise(self, rows: Tensor) -> GeneratorNoise:
        return GeneratorNoise(self._generator, rows.tolist(), rows.device)

    def _count(self, rows: int) -> None:
        self.report.calls += 1
        if self.report.calls > 1:
            self.report.rounds += 1
            self.report.row_rounds += rows

    def _settle_counts(self, rows: Tensor, width: int) -> None:
        """The last drafts of these rows are over, and new ones of `width` begin."""
        before = self._width[rows]
        nodes = torch.arange(int(before.max()) + 1, device=rows.device)
        self.report.count(nodes <= before[:, None], self._accepted[rows], torch.ones_like(rows, dtype=torch.bool))
        self._accepted[rows], self._width[rows] = 0, width


def _levels(x: Tensor, chain: Chain, made: Any, each: int) -> list[Level]:
    """What one network call tells, by step; `each` of its rows belong to a step."""
    states, means, sigmas = [x, *chain.states], [x, *chain.means], [0.0, *chain.sigmas]
    held = torch.ones(len(x), dtype=torch.bool, device=x.device)

    def part(depth: int) -> Callable[[Any], Any]:
        def taken(value: Any) -> Any:
            if isinstance(value, Tensor) and len(value) != each * len(states):
                raise Unclear(f"the denoiser returned {len(value)} rows for {each * len(states)}")
            return value[depth * each : (depth + 1) * each] if isinstance(value, Tensor) else value

        return taken

    return [
        Level(state, mean, sigma, leaves(made, part(depth)), held)
        for depth, (state, mean, sigma) in enumerate(zip(states, means, sigmas, strict=True))
    ]


def _sample_of(made: Any) -> Tensor:
    sample: Tensor = made[0] if isinstance(made, tuple) else made.prev_sample
    return sample


def _with_sample(made: Any, y: Tensor) -> Any:
    """What a scheduler returned, with another sample."""
    if isinstance(made, tuple):
        return (y, *made[1:])
    made.prev_sample = y
    return made
