"""Drafts of the next steps by a frozen prediction.

De Bortoli et al. (arXiv 2501.05370, § 4): the network's last prediction is kept for the steps to come, each of which
then is a Gaussian of the scheduler's own, with a mean that costs nothing. Frozen is the clean sample, not the output:
the noise that a step adds is then seen as noise by the next. The newest prediction is the best one, also where it was
made for a state that was drafted and refused. Any mean is exact, as long as its noise is new.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec_continuous.denoising.asked import first_of
from mmspec_continuous.denoising.noise import GeneratorNoise
from mmspec_continuous.denoising.schedulers import Steps, output_of


@dataclass
class Chain:
    """Drafted steps of some rows.

    Attributes:
        scaled: By step, the present one first: states as the scheduler scales them for the network, `[m, *unit]`.
        states: By drafted step, `[m, *unit]`.
        means: What they were drawn around.
        sigmas: With which spread.
    """

    scaled: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)
    sigmas: list[float] = field(default_factory=list)


def drafted(steps: Steps, index: int, most: int, x: Tensor, clean: Tensor, noise: GeneratorNoise) -> Chain:
    """Draft at most `most` steps from states at step `index`.

    Args:
        steps: A fork's, of these rows.
        index: The present step.
        most: Steps to draft.
        x: `[m, *unit]`.
        clean: The frozen prediction, `[m, *unit]`.
        noise: Of these rows.
    """
    chain = Chain()
    for at in range(index, index + most + 1):
        t = steps.scheduler.timesteps[at]
        chain.scaled.append(steps.scheduler.scale_model_input(x, t))
        if at == index + most:
            break
        sigma = steps.sigma(t, x)
        mean = steps.mean(output_of(steps.scheduler, at, clean, x).to(x.dtype), t, x)
        x = (mean.float() + sigma * noise.normal(*x.shape[1:])[:, 0]).to(x.dtype)
        if not sigma > 0 or not bool(x.isfinite().all()):  # nothing to couple with
            break
        chain.states.append(x)
        chain.means.append(mean)
        chain.sigmas.append(sigma)
    return chain


def guided(output: Any, reference: Any, prediction: Tensor) -> Tensor | None:
    """What the pipeline would have made of a denoiser's output; None where that cannot be told.

    Args:
        output: What the denoiser returned, for one or two copies of the batch.
        reference: What it returned for another state.
        prediction: What the pipeline made of that: the guidance scale is read off it.
    """
    new, old = first_of(output), first_of(reference)
    if new is None or old is None or new.shape != old.shape or new.shape[1:] != prediction.shape[1:]:
        return None
    copies = len(new) // len(prediction)
    if copies == 1:
        return new
    if copies > 2:
        return None
    (a, b), (c, d) = new.chunk(2), old.chunk(2)
    apart = d - c
    unit = tuple(range(1, apart.dim()))
    size = (apart * apart).sum(unit, keepdim=True).clamp(min=torch.finfo(apart.dtype).tiny)
    return a + ((prediction - c) * apart).sum(unit, keepdim=True) / size * (b - a)
