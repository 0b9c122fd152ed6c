"""Plain loops of ours beside our methods: what somebody would run who has LlamaGen's weights and torch."""

import time
from dataclasses import dataclass

import torch

from mmspec.bench.race import Run
from mmspec.bench.timing import synchronize
from mmspec_image.models.llamagen import LlamaGenTransformer
from tools.bench.image.plain_loop import compiled_step, plain_loop, step
from tools.bench.pictures.subject import Setting
from tools.bench.pictures.tasks import Task

LOOPS = {
    "loop with a growing cache": (False, False, "keys in a cache that grows"),
    "loop with a static cache, as LlamaGen's code does": (
        True,
        False,
        "keys in a cache of full length under a mask, both allocated once a call and read by index",
    ),
    "loop with a static cache, compiled": (True, True, "the same, its steps compiled by torch"),
}
"""Whether each loop has a static cache, whether it is compiled, and what is special about it."""


@dataclass(frozen=True)
class Loop:
    """A plain loop."""

    model: LlamaGenTransformer
    setting: Setting  # how codes are drawn
    note: str  # what the loop is, for the reader of the result
    static: bool  # whether the cache has its full length from the start
    compiled: bool  # whether steps are compiled

    def __call__(self, task: Task) -> Run:
        device = str(self.model.device)
        generator = torch.Generator(device).manual_seed(task.seeds[0])
        then = compiled_step() if self.compiled else step
        guidance, temperature = self.setting.guidance, self.setting.temperature
        assert temperature is not None
        synchronize(device)
        began = time.perf_counter()
        codes = plain_loop(self.model, task.condition, guidance, temperature, generator, static=self.static, then=then)
        synchronize(device)
        return Run(time.perf_counter() - began, list(codes.cpu()))


def loops(model: LlamaGenTransformer, setting: Setting) -> dict[str, Loop]:
    """All plain loops, by name."""
    note = "a plain loop of ours over the same weights: "
    return {name: Loop(model, setting, note + what, *how) for name, (*how, what) in LOOPS.items()}
