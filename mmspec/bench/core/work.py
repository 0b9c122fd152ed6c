"""What a pass has to read and to compute, and the least time for that on a machine whose limits were measured."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from mmspec.bench.core.shape import Workload
from mmspec.bench.timing import timed
from mmspec.hosts.model_info import EXPERTS

REPEATS = 7


@dataclass(frozen=True)
class Machine:
    """Limits of a device, measured in the same run as everything that they are compared with."""

    bandwidth: float  # bytes per second of a copy, bytes read and written both counted
    arithmetic: float  # floating-point operations per second of a large matrix product in the weights' dtype
    launch: float  # seconds to launch one small kernel, the mean of many


def measure_machine(device: torch.device, dtype: torch.dtype, small: bool) -> Machine:
    """The fastest of some copies and matrix products; they are larger on a GPU, where small ones take no time."""
    where = str(device)
    source = torch.ones(2 ** (24 if small else 30), device=device, dtype=dtype)
    copy, square = torch.empty_like(source), torch.randn(*(2 * (512 if small else 8192,)), device=device, dtype=dtype)
    product, one = torch.empty_like(square), torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(100):
            one.add_(1)

    def fastest(work: Callable[[], Any]) -> float:
        return min(timed(work, where) for _ in range(REPEATS))

    moved = 2 * source.numel() * source.element_size()
    return Machine(
        bandwidth=moved / fastest(lambda: copy.copy_(source)),
        arithmetic=2 * square.shape[0] ** 3 / fastest(lambda: torch.mm(square, square, out=product)),
        launch=fastest(many) / 100,
    )


@dataclass(frozen=True)
class Work:
    """What passes of a model read and compute."""

    shared: float  # bytes of weights that every pass reads
    routed: float  # bytes of all experts; 0 without experts
    chosen: float  # share of the experts that one unit chooses
    operations: float  # floating-point operations per unit, attention to the context left out
    slot: float  # bytes of the cache per unit of context and row
    units: int  # positions that the network computes per node
    passes: int  # passes of the network per pass of the target

    @classmethod
    def of(cls, workload: Workload) -> "Work":
        """The work of a workload, from its weights: two operations per weight and unit; a lookup is free."""
        model, config = workload.model, getattr(workload.model, "config", None)
        config = config.get_text_config(decoder=True) if isinstance(config, PreTrainedConfig) else config
        experts = next((count for name in EXPERTS if (count := getattr(config, name, None))), 1)
        chosen = getattr(config, "num_experts_per_tok", 1) / experts
        routed = [weight for name, weight in model.named_parameters() if ".experts." in name]
        shared = list(_read(model, {id(weight) for weight in routed}))
        operations = 2 * (sum(w.numel() for w in shared) + chosen * sum(w.numel() for w in routed))
        size = (workload.autocast or next(model.parameters()).dtype).itemsize
        return cls(
            shared=sum(w.numel() * w.element_size() for w in shared),
            routed=sum(w.numel() * w.element_size() for w in routed),
            chosen=chosen,
            operations=operations,
            slot=workload.slot * size,
            units=workload.units,
            passes=workload.passes,
        )

    def read(self, rows: int, nodes: int, context: int) -> float:
        """Bytes that a pass reads; of the experts, the share that so many units are expected to choose."""
        missed = (1 - self.chosen) ** (rows * nodes * self.units)
        return self.passes * (self.shared + self.routed * (1 - missed) + rows * context * self.slot)

    def computed(self, rows: int, nodes: int) -> float:
        """Floating-point operations of a pass."""
        return self.passes * self.operations * rows * nodes * self.units

    def floor(self, machine: Machine, rows: int, nodes: int, context: int) -> float:
        """Seconds that a pass takes at least."""
        return max(self.read(rows, nodes, context) / machine.bandwidth, self.computed(rows, nodes) / machine.arithmetic)

    def memory(self, rows: int, context: int) -> float:
        """Bytes of the cache of a call."""
        return rows * context * self.slot


def _read(model: nn.Module, but: set[int]) -> Iterator[Tensor]:
    """Weights that every pass reads: no experts, and no table of embeddings that is not the output layer's, too."""
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    products = {id(part.weight) for part in model.modules() if isinstance(part, nn.Linear)}
    for weight in model.parameters():
        if id(weight) not in but and (id(weight) not in tables or id(weight) in products):
            yield weight
