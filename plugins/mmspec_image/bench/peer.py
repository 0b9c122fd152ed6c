"""LlamaGen's own loop over the same weights, beside our methods."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.bench.limits import settle
from mmspec.bench.race import Run
from mmspec.pictures.bench.contestants import Call
from mmspec.pictures.bench.tasks import Task
from mmspec_image.bench.reference import reference


@dataclass
class Theirs:
    """LlamaGen's own loop.

    Attributes:
        call: How pictures are drawn.
        guidance: Scale.
        temperature: Of sampling.
    """

    call: Call
    guidance: float
    temperature: float

    note = "LlamaGen's sampling loop over the same weights, torch only, keys in a cache that grows; draws of its own"

    def __call__(self, task: Task) -> Run:
        device = str(self.call.model.device)
        generator = torch.Generator(device).manual_seed(task.seeds[0])
        settle(device)
        began = time.perf_counter()
        codes: Tensor = reference(self.call.model, task.condition, self.guidance, self.temperature, generator)
        settle(device)
        return Run(time.perf_counter() - began, list(codes.cpu()))
