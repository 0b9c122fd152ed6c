"""The denoising head on a clock of its own, apart from the transformer; and what a pass costs with it.

Distributions run the head when they are drawn from, which is after the target's pass: in a report its time is in
`rest`.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.philox import PhiloxSource
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.core.warp import Warp
from mmspec.kits.pictures.bench.contestants import Call, Drawn
from mmspec.kits.pictures.bench.tasks import Task
from mmspec_continuous.models.continuous_ar import CausalContinuousAR


class Clock:
    """A head that counts its calls and their seconds; all else is the head's own.

    On CUDA these are the seconds to issue, not to run.

    Args:
        head: As distributions call it.
    """

    def __init__(self, head: Any) -> None:
        self._head, self.seconds, self.calls = head, 0.0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head, name)

    def mean(self, x: Tensor, step: int | Tensor, condition: Tensor) -> Tensor:
        """As the head's."""
        began = time.perf_counter()
        mean: Tensor = self._head.mean(x, step, condition)
        self.seconds += time.perf_counter() - began
        self.calls += 1
        return mean


@dataclass(frozen=True)
class Denoised(Drawn):
    """A run that says how long the head took.

    Attributes:
        head: Seconds.
        calls: How often it ran, one after another.
    """

    head: float = 0.0
    calls: int = 0


@dataclass(frozen=True)
class HeadCall:
    """How pictures are drawn: `Call`, with the head on the clock.

    Attributes:
        model: The transformer.
        warp: Draws from the target's distributions as they are.
    """

    model: CausalContinuousAR
    warp: Warp = field(default_factory=Warp)

    def __call__(self, decoder: Decoder, task: Task) -> Denoised:
        target: Any = decoder.target
        clock = target.head = Clock(target.head)
        drawn = Call(self.model, self.warp)(decoder, task)
        return Denoised(drawn.seconds, drawn.units, drawn.report, drawn.after, clock.seconds, clock.calls)


def split(runs: list[Denoised]) -> dict[str, float]:
    """Milliseconds a picture of transformer and head, and the head's calls: means over runs of one picture each."""
    passes = sum(run.report.seconds["prefill"] + run.report.seconds["verify"] for run in runs)
    return {
        "backbone_ms": round(1000 * passes / len(runs), 3),
        "head_ms": round(1000 * sum(run.head for run in runs) / len(runs), 3),
        "head_calls": round(sum(run.calls for run in runs) / len(runs), 2),
    }


class Whole:
    """A target whose passes draw a token at every node: what a pass costs with its head.

    Args:
        target: Passes.
    """

    def __init__(self, target: Any) -> None:
        self.target = target

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        """As a target's."""
        return self.target.start(inputs, limit, width)

    def verify(self, cache: Any, draft: Draft, first: int = 0) -> TargetOutput:
        """As a target's, and a draw at every node."""
        output: TargetOutput = self.target.verify(cache, draft, first)
        rows = len(draft.units)
        none = torch.zeros(rows, dtype=torch.int64, device=draft.units.device)
        output.distribution.draw(PhiloxSource.seeded(0, rows, none.device).fresh(none, 0, draft.nodes))
        return output
