"""A shape: a model of a published size with random weights, which is as fast as the published one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec_text.plan.work import Work


@dataclass(frozen=True)
class Workload:
    """A live model, and how it is called."""

    model: nn.Module  # the model; some plugin has a target for it
    prompt: Callable[[int, int], Any]  # makes a prompt of so many rows with so many units of context
    slot: int  # numbers that the cache holds per unit of context and row
    units: int = 1  # positions that the network computes per node: 2 under guidance, the cells of a frame, …
    passes: int = 1  # passes of the network per pass of the target: the steps of a denoiser
    # The dtype of the network's products where the weights stay in float32; None: the dtype of the weights
    autocast: torch.dtype | None = None
    # The next units of so many rows, `[row, 1]`, where they come from outside (a player's actions)
    truth: Callable[[int], Tensor] | None = None

    def work(self) -> Work:
        """The work of one pass of the network, whose nodes are positions."""
        dtype = self.autocast or next(self.model.parameters()).dtype
        return Work.of(self.model, self.slot * dtype.itemsize)


@dataclass(frozen=True)
class Shape:
    """A model of a published size."""

    name: str
    make: Callable[..., Workload]  # makes the workload from a device, a dtype and the numbers
    numbers: Mapping[str, Any]  # arguments of `make`: the configuration of the published size
    small: Mapping[str, Any]  # changes of `numbers` for a stand-in of the same architecture that a CPU runs in seconds
    contexts: tuple[int, ...] | None = None  # units of context; None: as in the benchmark
    nodes: tuple[int, ...] | None = None  # nodes of a pass; None: as in the benchmark
    generates: bool = True  # whether transformers' own `generate` runs the model

    def workload(self, device: torch.device, dtype: torch.dtype, small: bool) -> Workload:
        """The model with random weights, made on the device in the dtype."""
        torch.manual_seed(0)
        return self.make(device, dtype, **{**self.numbers, **(self.small if small else {})})
