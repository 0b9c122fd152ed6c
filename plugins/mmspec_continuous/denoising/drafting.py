"""Drafts of the next denoising steps with a frozen prediction, and what the network predicts there.

De Bortoli et al. (arXiv 2501.05370, § 4): the network's last prediction is kept for the steps to come, so that each of
them is a Gaussian of the scheduler's own whose mean costs nothing. What is kept is the predicted clean sample, not the
network's output: the noise that a drafted step adds then counts as noise at the next. The newest prediction is the best
one, also where it was made for a drafted state that was refused. Any mean is exact, as long as its noise is fresh.

There is one entry of predictions per denoising step, valid row by row. A row of an entry is *valid* while its drafted
state may still become the row's own: the network's output for it is then known already. Rows become invalid one by one,
and the next network call is made for the invalid ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor

from mmspec.core.noise import Substream
from mmspec_continuous.denoising.denoiser_call import UnsupportedCall, leaves_of, map_leaves, prediction_in
from mmspec_continuous.denoising.schedulers import GaussianSteps, output_of, scaled


@dataclass(frozen=True)
class GeneratorNoise:
    """Noise of one node per row. Numbers are never repeated, so all lanes are independent of each other."""

    # One generator for all rows, one per row, or None for torch's own
    generator: torch.Generator | Sequence[torch.Generator] | None
    rows: Sequence[int]  # indices of the rows of the batch that numbers are drawn for
    device: torch.device  # device of the numbers

    def substream(self, substream: Substream) -> "GeneratorNoise":
        return self

    def uniform(self) -> Tensor:
        """Uniform numbers in [0, 1), `[rows, 1]` float32."""
        if isinstance(self.generator, Sequence):
            return torch.cat([self._uniform(self.generator[row], 1) for row in self.rows])
        return self._uniform(self.generator, len(self.rows))

    def normal(self, *unit: int) -> Tensor:
        """Standard normal numbers, `[rows, 1, *unit]` float32."""
        generator = self.generator
        if isinstance(generator, Sequence):
            generator = [generator[row] for row in self.rows]
        return randn_tensor((len(self.rows), 1, *unit), generator=generator, device=self.device, dtype=torch.float32)

    def _uniform(self, generator: torch.Generator | None, count: int) -> Tensor:
        home = self.device if generator is None else generator.device
        return torch.rand(count, 1, generator=generator, dtype=torch.float32, device=home).to(self.device)


@dataclass(frozen=True)
class DraftedStep:
    """The states of some rows at one denoising step: the present ones, or drafted ones."""

    state: Tensor  # `[m, *unit]`
    mean: Tensor  # mean of the Gaussian that a drafted state was drawn from, `[m, *unit]`
    sigma: float  # its standard deviation; 0 at the present step
    scaled: Tensor  # the state as the scheduler scales it for the network, `[m, *unit]`


def draft_steps(
    steps: GaussianSteps, index: int, most: int, x: Tensor, clean: Tensor, noise: GeneratorNoise
) -> list[DraftedStep]:
    """The present step `index` of states `x [m, *unit]` and at most `most` drafted ones, by the frozen prediction
    `clean [m, *unit]`.
    """
    draft, mean, sigma = list[DraftedStep](), x, 0.0
    for at in range(index, index + most + 1):
        t = steps.scheduler.timesteps[at]
        draft.append(DraftedStep(x, mean, sigma, scaled(steps.scheduler, x, t)))
        if at == index + most:
            break
        sigma = steps.sigma(t, x)
        mean = steps.mean(output_of(steps.scheduler, at, clean, x).to(x.dtype), t, x)
        x = (mean.float() + sigma * noise.normal(*x.shape[1:])[:, 0]).to(x.dtype)
        if not sigma > 0 or not bool(x.isfinite().all()):  # a step without noise cannot be coupled
            break
    return draft


def guided_prediction(output: Any, reference: Any, prediction: Tensor) -> Tensor | None:
    """The guided prediction that the pipeline would make of a denoiser's output, for one or two copies of the batch;
    None where that cannot be told.

    `reference` is what the denoiser returned for another state, and `prediction` what the pipeline made of it: the
    guidance scale is read off them.
    """
    new, old = prediction_in(output), prediction_in(reference)
    if new is None or old is None or new.shape != old.shape or new.shape[1:] != prediction.shape[1:]:
        return None
    copies = len(new) // len(prediction)
    if copies == 1:
        return new
    if copies > 2:
        return None
    (new_first, new_second), (first, second) = new.chunk(2), old.chunk(2)
    difference = second - first
    unit = tuple(range(1, difference.dim()))
    size = (difference * difference).sum(unit, keepdim=True).clamp(min=torch.finfo(difference.dtype).tiny)
    scale = ((prediction - first) * difference).sum(unit, keepdim=True) / size
    return new_first + scale * (new_second - new_first)


@dataclass
class Prediction:
    """The drafted states of one step, and what the network predicts there."""

    state: Tensor  # `[batch, *unit]`
    mean: Tensor  # mean of the Gaussian that the state was drawn from, `[batch, *unit]`
    sigma: float  # its standard deviation
    output: Any  # what the denoiser returned: a nest of `[copies * batch, …]`
    valid: Tensor  # `[batch]` bool


class Predictions:
    """Predictions for a batch, by index of the denoising step."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.at: dict[int, Prediction] = {}

    def missing(self, index: int, device: torch.device) -> Tensor:
        """Rows without a valid prediction at step `index`: `[m]` int64."""
        known = self.at.get(index)
        return torch.arange(self.batch, device=device) if known is None else (~known.valid).nonzero().flatten()

    def put(self, index: int, rows: Tensor, copied: Tensor, new: Prediction) -> None:
        """Enter the prediction of the rows `[m]` of the batch, which are the rows `copied [copies * m]` of the
        denoiser's output.
        """
        if len(rows) == self.batch:
            self.at[index] = new
            return
        old = self.at.get(index)
        states = None if old is None else (old.state, old.mean, old.valid)
        state, mean, valid = _merged(states, (new.state, new.mean, new.valid), rows, self.batch)
        output = _merged(old and old.output, new.output, copied, len(copied) // len(rows) * self.batch)
        self.at[index] = Prediction(state, mean, new.sigma, output, valid)

    def advance(self, index: int, same: Tensor) -> None:
        """All rows are at step `index`; only the rows of `same [batch]` are at the drafted state and stay valid."""
        self.at = {step: known for step, known in self.at.items() if step >= index}
        for known in self.at.values():
            known.valid = known.valid & same


def by_step(draft: Sequence[DraftedStep], output: Any, each: int) -> list[Prediction]:
    """The output of one network call, a nest of `[step * each, …]`, divided into its steps; raises `UnsupportedCall`
    where it has another number of rows.
    """
    valid = torch.ones(len(draft[0].state), dtype=torch.bool, device=draft[0].state.device)

    def rows_of(value: Any, step: int) -> Any:
        if isinstance(value, Tensor) and len(value) != each * len(draft):
            raise UnsupportedCall(f"the denoiser returned {len(value)} rows for {each * len(draft)}")
        return value[step * each : (step + 1) * each] if isinstance(value, Tensor) else value

    outputs = [map_leaves(output, partial(rows_of, step=step)) for step in range(len(draft))]
    return [Prediction(d.state, d.mean, d.sigma, o, valid) for d, o in zip(draft, outputs, strict=True)]


def _merged(old: Any, new: Any, rows: Tensor, size: int) -> Any:
    """The nest `old` with `rows` of its tensors replaced by `new`'s; where it is None, zeros elsewhere."""
    before = iter(leaves_of(old)) if old is not None else None

    def entered(part: Any) -> Any:
        known = None if before is None else next(before)
        if not isinstance(part, Tensor):
            return part
        return (part.new_zeros(size, *part.shape[1:]) if known is None else known).index_copy(0, rows, part)

    return map_leaves(new, entered)
