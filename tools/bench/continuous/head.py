"""The denoising head, timed apart from the transformer; and what a pass costs with it.

Distributions run the head when they are drawn from, which is after the target's pass: in a report its time is in
`rest`.
"""

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.philox import PhiloxSource
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec_continuous.targets.continuous import ContinuousTarget
from tools.bench.pictures.contestants import Drawn, PictureSampler
from tools.bench.pictures.tasks import Task


class HeadClock:
    """Counts the calls of a denoising head, and their seconds; on CUDA these are the seconds to launch, not to run."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0

    def on(self, head: Any) -> Any:
        """A copy of a head whose calls are counted and timed here."""
        timed = copy(head)
        timed.mean = partial(self.measure, timed.mean)
        return timed

    def measure(self, mean: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Run and time one call of the head's `mean`."""
        began = time.perf_counter()
        result = mean(*arguments)
        self.seconds += time.perf_counter() - began
        self.calls += 1
        return result


@dataclass(frozen=True)
class DrawnWithHead(Drawn):
    """A run that says how long the head took."""

    head: float = 0.0  # seconds of the head
    calls: int = 0  # how often the head ran, one call after another


@dataclass(frozen=True)
class HeadTimedSampler(PictureSampler):
    """Draws pictures from the target's distributions as they are, with the head on a clock of its own."""

    def __call__(self, decoder: Decoder, task: Task) -> DrawnWithHead:
        target, clock = cast(ContinuousTarget, decoder.target), HeadClock()
        target.head = clock.on(target.head)
        drawn = super().__call__(decoder, task)
        return DrawnWithHead(drawn.seconds, drawn.units, drawn.report, drawn.after, clock.seconds, clock.calls)


def head_times(runs: Sequence[Any]) -> dict[str, float]:
    """Milliseconds a picture of transformer and head, and the head's calls: means over runs of one picture each."""
    passes = sum(run.report.seconds["prefill"] + run.report.seconds["verify"] for run in runs)
    return {
        "backbone_ms": round(1000 * passes / len(runs), 3),
        "head_ms": round(1000 * sum(run.head for run in runs) / len(runs), 3),
        "head_calls": round(sum(run.calls for run in runs) / len(runs), 2),
    }


class TargetWithHead:
    """A target whose passes draw a token at every node: what a pass costs with its head."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        """`start` of the wrapped target."""
        return self.target.start(inputs, limit, width)

    def verify(self, cache: Any, draft: Draft, first: int = 0) -> TargetOutput:
        """`verify` of the wrapped target, and a draw at every node."""
        output: TargetOutput = self.target.verify(cache, draft, first)
        assert output.distribution is not None
        rows = len(draft.units)
        none = torch.zeros(rows, dtype=torch.int64, device=draft.units.device)
        output.distribution.draw(PhiloxSource.seeded(0, rows, none.device).fresh(none, 0, draft.nodes))
        return output
