"""`CausalContinuousAR` as a target: one pass with, and under guidance one without, the caption scores a draft.

The scale of guidance is not part of the core's warp, which combines logits: here it is part of the distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.distributions import Schedule
from mmspec.core.protocols import Target
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts.devices import awake, hooks_of
from mmspec.hosts.guidance import GuidedCache
from mmspec.hosts.linear import Kernels, kernels, narrow, renew
from mmspec.kits.pictures.conditions import Condition
from mmspec.kits.pictures.raster import Raster
from mmspec_continuous.models.continuous_ar import CausalContinuousAR
from mmspec_continuous.models.denoiser import Denoiser
from mmspec_continuous.specs import CONTINUOUS_AR


@dataclass(frozen=True)
class Guided(Condition):
    """A condition under guidance."""

    # Guidance scale, one for all or `[batch]`: 1 is no guidance; larger leads away from the null condition
    scale: float | Tensor = 1.0

    @classmethod
    def of(cls, condition: Condition, scale: float | Tensor) -> "Guided":
        return cls(**{**vars(condition), "scale": scale})


@dataclass
class ContinuousCache:
    guidance: GuidedCache  # keys and values with and without the condition
    # Guidance scale, as in `Guided`; None: there is no unconditional half. May be changed between rounds.
    scale: float | Tensor | None


class RunningHead:
    """A model's denoising head as distributions call it between passes: on its device, with kernels for few rows."""

    def __init__(self, model: CausalContinuousAR) -> None:
        head = model.token_head
        assert isinstance(head, Denoiser)
        self.model, self.head, self.dim = model, head, head.dim
        self.sigmas, self.carry = head.sigmas, head.carry
        self.clean, self.around = head.clean, head.around
        self.calls = 0  # of the head's network since the last call began
        self._kernels: Kernels = Kernels()

    def renew(self) -> None:
        """A call begins: the weights may have moved or changed since the last one."""
        replaceable = self.model.device.type == "cpu" and not hooks_of(self.model)
        self._kernels = kernels(self.head) if replaceable else Kernels()
        renew(self._kernels)
        self.calls = 0

    @torch.no_grad()
    def mean(self, x: Tensor, step: int | Tensor, condition: Tensor) -> Tensor:
        """Mean of the next state `[m, dim]`, as in `mmspec.core.distributions.Head`; `step` may be `[m]` int64."""
        self.calls += 1
        with awake(self.model, self.head), narrow(self._kernels, 2 * len(x)):
            return self.head.mean(x, step, condition)


class ContinuousTarget:
    """The distribution of a picture's tokens, in raster order. Refuses a chain with a step that adds no noise."""

    offers = CONTINUOUS_AR.offers
    vocab: int | None = None

    def __init__(self, model: CausalContinuousAR) -> None:
        self.model = model
        self.context = model.cells
        self.grid = model.config.grid
        self.raster = Raster(model, model.project)
        self.head = RunningHead(model) if isinstance(model.token_head, Denoiser) else None
        if self.head is not None:
            Schedule.of(self.head)

    def start(self, inputs: Condition, limit: int, width: int) -> Prefill:
        """Prefill a condition; there is no prompt of tokens. A condition without a scale is not guided. Refuses
        guidance of a model that has none.
        """
        if limit > self.context:
            raise ValueError(f"a picture of this model has {self.context} tokens, {limit} were asked for")
        scale = self._scale(inputs)
        if self.head is not None:
            self.head.renew()
        guidance, passed = self.raster.start(replace(inputs, guided=scale is not None), limit, width)
        cache = ContinuousCache(guidance, scale)
        device = passed.scores.device
        prompt = torch.zeros(guidance.rows, 0, self.model.config.token_dim, dtype=torch.float32, device=device)
        pads = torch.zeros(guidance.rows, dtype=torch.int64, device=device)
        return self.raster.begun(guidance, Prefill(cache, self._output(cache, passed.scores), prompt, pads))

    def verify(self, cache: ContinuousCache, draft: Draft, first: int = 0) -> TargetOutput:
        return self._output(cache, self.raster.verify(cache.guidance, draft, first).scores)

    def renew_null(self, cache: ContinuousCache, null: Tensor, null_mask: Tensor | None, units: Tensor) -> None:
        self.raster.renew_null(cache.guidance, null, null_mask, units)

    @torch.inference_mode()
    def commit(self, cache: ContinuousCache, path: Tensor, count: Tensor) -> None:
        cache.guidance.commit(path, count)

    def synced(self, cache: ContinuousCache, emitted: Sequence[int]) -> None:
        cache.guidance.synced(emitted)

    def truncate(self, cache: ContinuousCache, length: Tensor) -> None:
        cache.guidance.truncate(length)

    def _output(self, cache: ContinuousCache, projected: Tensor) -> TargetOutput:
        """Distributions of `[physical, node, …]`: what the head takes of the hidden states of both halves."""
        condition, null = cache.guidance.apart(projected)
        return TargetOutput(distribution=self.model.token_head.distribution(condition, null, cache.scale, self.head))

    def _scale(self, inputs: Condition) -> float | Tensor | None:
        """The guidance scale of a call; None without guidance."""
        scale = inputs.scale if isinstance(inputs, Guided) and inputs.guided else 1.0
        if bool((torch.as_tensor(scale) == 1).all()):
            return None
        if self.head is None:
            raise ValueError(
                "guidance of a Gaussian mixture is refused: the guided distribution is no mixture, so that it could "
                "neither be drawn from nor coupled exactly; use guidance 1, or a model with a diffusion head"
            )
        if not self.model.config.null_caption:
            raise ValueError(
                "this model was trained without a null caption (null_caption=False), so that guidance has nothing to "
                "lead away from; use guidance 1"
            )
        return scale


def refuse_mixtures(target: Target, rule: str, what: str) -> None:
    """Refuse a target whose head has no steps, which the rule needs for `what`; another target is left to the check of
    its distributions.
    """
    if isinstance(target, ContinuousTarget) and target.head is None:
        raise ValueError(
            f"the rule {rule!r} {what} of a denoising head, and this model's head is a mixture of Gaussians, which has "
            "no steps; use 'rejection', which is exact"
        )
