"""`mmspec.enable(pipe, "speculative-denoising")`: the pipeline's own call with fewer network calls, same distribution.

In place and reversible: the denoiser's `forward` and the scheduler's `step` and `set_timesteps` are replaced on these
objects, and put back by `disable`; weights, classes and configurations are never touched.
"""

import functools
import inspect
from types import TracebackType
from typing import Any, NoReturn, Self

from torch import nn

from mmspec.api.adapters import BLOCK, HANDLE, refuse_copy
from mmspec_continuous.denoising.sampling_run import DenoisingReport, SamplingRun
from mmspec_continuous.denoising.schedulers import refuse, refuse_default_call

_ABSENT = object()


class Denoising:
    """A diffusers pipeline that speculates; leave it with `disable()` or as a context manager.

    The pipeline has a `unet` or `transformer`, and a scheduler that adds noise. At most `k` denoising steps are drafted
    per network call, which then sees `k + 1` times the states. `why` is the reason for this method, where the user
    named none: then the pipeline's call as it is by default has to add noise, since nothing says that the user will ask
    for it. Refuses a scheduler whose steps are not Gaussians of known variance, and one that another pipeline's
    denoising has.
    """

    def __init__(self, pipe: Any, method: str, k: int, why: str = "") -> None:
        refuse(pipe.scheduler)
        if why:
            refuse_default_call(pipe, method)
        if "step" in vars(pipe.scheduler):
            raise ValueError("this pipeline's scheduler is replaced already, as by another pipeline that is enabled")
        self.held: list[str] = []
        self.method, self.k, self.why = method, k, why
        self._pipe = pipe
        self._before: list[tuple[Any, str, Any]] = []
        self._own = pipe.scheduler.step, pipe.scheduler.set_timesteps
        self._begin()
        self._wrap(
            pipe.scheduler, pipe.unet if isinstance(getattr(pipe, "unet", None), nn.Module) else pipe.transformer
        )

    @property
    def report(self) -> DenoisingReport | None:
        """Counts and times of the last call; None before the first."""
        return self._report if self._report.steps else None

    def __repr__(self) -> str:
        on = "" if self._before else ", disabled"
        why = f" ({self.why})" if self.why else ""
        return f"<mmspec {self.method} on {type(self._pipe).__name__}, k={self.k}{on}{why}>"

    def __reduce__(self) -> NoReturn:
        refuse_copy(self._pipe)

    def disable(self) -> None:
        for owner, name, value in reversed(self._before):
            if value is _ABSENT:
                vars(owner).pop(name, None)
            else:
                vars(owner)[name] = value
        self._before.clear()

    def _wrap(self, scheduler: Any, denoiser: nn.Module) -> None:
        network, (step, set_timesteps) = denoiser.forward, self._own
        takes = inspect.signature(network)

        @functools.wraps(network)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._run.denoise(network, takes, args, kwargs)

        @functools.wraps(step)
        def stepped(*args: Any, **kwargs: Any) -> Any:
            return self._run.step(*args, **kwargs)

        @functools.wraps(set_timesteps)
        def begun(*args: Any, **kwargs: Any) -> Any:
            self._begin()
            return set_timesteps(*args, **kwargs)

        self._replace(denoiser, "forward", forward)
        self._replace(scheduler, "step", stepped)
        self._replace(scheduler, "set_timesteps", begun)
        self._replace(self._pipe, HANDLE, self)

    def _begin(self) -> None:
        self._report = DenoisingReport(self.method, "lossless")
        self._run = SamplingRun(self._pipe.scheduler, self._own[0], self.k, self._report)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
        vars(owner)[name] = value

    def __enter__(self) -> Self:
        self.held.append(BLOCK)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.held.remove(BLOCK)
        self.disable()
