"""Plain loops of ours beside our methods: what somebody would run who has LlamaGen's weights and torch."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.bench.limits import synchronize
from mmspec.bench.race import Run
from mmspec.kits.pictures.bench.contestants import Call
from mmspec.kits.pictures.bench.tasks import Task
from mmspec_image.bench.plain_loop import compiled_step, plain_loop, step

LOOPS = {
    "plain loop, growing cache": "keys in a cache that grows",
    "plain loop, static cache": "keys in a masked cache of full length, as LlamaGen's own code keeps them",
    "plain loop, compiled": "the same, its steps compiled by torch",
}
"""What is special about each."""


@dataclass(frozen=True)
class Loop:
    """One of them.

    Attributes:
        call: How pictures are drawn.
        guidance: Scale.
        temperature: Of sampling.
        note: For the reader of the result.
        static: Whether the cache has its full length from the start.
        compiled: Whether steps are compiled.
    """

    call: Call
    guidance: float
    temperature: float
    note: str
    static: bool
    compiled: bool

    def __call__(self, task: Task) -> Run:
        model = self.call.model
        device = str(model.device)
        generator = torch.Generator(device).manual_seed(task.seeds[0])
        then = compiled_step() if self.compiled else step
        synchronize(device)
        began = time.perf_counter()
        codes: Tensor = plain_loop(
            model, task.condition, self.guidance, self.temperature, generator, static=self.static, then=then
        )
        synchronize(device)
        return Run(time.perf_counter() - began, list(codes.cpu()))


def loops(call: Call, guidance: float, temperature: float) -> dict[str, Loop]:
    """All of them, by name."""
    growing, static, compiled = LOOPS
    how = {growing: (False, False), static: (True, False), compiled: (True, True)}
    return {
        name: Loop(call, guidance, temperature, f"a plain loop of ours over the same weights: {what}", *how[name])
        for name, what in LOOPS.items()
    }
