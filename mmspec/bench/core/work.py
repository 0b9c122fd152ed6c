"""What a pass has to read and to compute, the least time for that, and where speculation stops paying, by formulas.

* A pass over n nodes of B rows takes at least t(B, n) = max(bytes read / bandwidth, operations / arithmetic).
* v(n) = t(B, n) / t(B, 1); a drafted unit costs c plain passes.
* A chain of γ drafts emits E(γ) = 1 + a_1 + … + a_γ units a round, where a_d is the probability that the path of a row
  reaches depth d: α^d, if each draft is accepted with probability α (Leviathan et al., arXiv 2211.17192, theorem 3.8).
* Its speed-up is S(γ) = E(γ) / (γ c + v(γ + 1)).

All times are floors: kernels reach a share of them (`efficiency`), and launches and the loop come on top.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from mmspec.bench.core.shape import Workload, known_shapes, of_model
from mmspec.bench.timing import timed
from mmspec.hosts.model_info import EXPERTS
from mmspec.hosts.outline import outline
from mmspec.registry.suggest import unknown

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
        return self.passes * self.operations * rows * nodes * self.units

    def floor(self, machine: Machine, rows: int, nodes: int, context: int) -> float:
        return max(self.read(rows, nodes, context) / machine.bandwidth, self.computed(rows, nodes) / machine.arithmetic)

    def memory(self, rows: int, context: int) -> float:
        return rows * context * self.slot


def _read(model: nn.Module, but: set[int]) -> Iterator[Tensor]:
    """Weights that every pass reads: no experts, and no table of embeddings that is not the output layer's, too."""
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    products = {id(part.weight) for part in model.modules() if isinstance(part, nn.Linear)}
    for weight in model.parameters():
        if id(weight) not in but and (id(weight) not in tables or id(weight) in products):
            yield weight


@dataclass(frozen=True)
class Gpu:
    """A GPU by its data sheet."""

    memory: float  # bytes
    bandwidth: float  # bytes per second
    arithmetic: float  # dense operations per second in 16 bits

    def machine(self, efficiency: float = 1.0) -> Machine:
        """Its limits, of which kernels reach a share."""
        return Machine(efficiency * self.bandwidth, efficiency * self.arithmetic, launch=0.0)


GPUS = {
    "l4": Gpu(24e9, 0.300e12, 121e12),
    "l40s": Gpu(48e9, 0.864e12, 362e12),
    "a100": Gpu(80e9, 2.039e12, 312e12),
    "h100": Gpu(80e9, 3.35e12, 989e12),
    "h200": Gpu(141e9, 4.8e12, 989e12),
    "b200": Gpu(180e9, 7.7e12, 2250e12),
}
"""The makers' data sheets: SXM modules where there are several."""


@dataclass(frozen=True)
class Drafting:
    """How well drafts are accepted, and what they cost."""

    by_depth: Sequence[float]  # the probability that a row's path reaches depth 1, 2, …; as many as there may be drafts
    cost: float = 0.0  # c: the time of one drafted unit, in plain passes

    def units(self, drafts: int) -> float:
        """E: the units that a round is expected to emit."""
        return 1.0 + sum(self.by_depth[:drafts])


@dataclass(frozen=True)
class Forecast:
    rows: int  # rows decoded together
    memory: float  # bytes of weights and caches
    pass_seconds: float  # the floor of a plain pass
    drafts: int  # the number of drafts that is fastest; 0: speculation does not pay
    v: float  # v(drafts + 1)
    speedup: float  # S of that number
    plain: float  # units per second of plain decoding, all rows together
    fast: float  # units per second with drafts


def work_of(name: str) -> Work:
    """The work of a model in its full size, in bfloat16; no weight is read.

    The name is a shape of `mmspec bench core`, or a language model: `mmspec/…`, a folder with a
    `config.json`, or a hub name.

    Raises:
        ValueError: There is no such shape and no such model.
    """
    known = known_shapes()
    if name in known:
        return Work.of(known[name].workload(torch.device("meta"), torch.bfloat16, small=False))
    if "/" not in name and not Path(name).is_dir():
        raise ValueError(f"{unknown('shape', name, known)}; or give a folder with a config.json, or a hub name")
    return Work.of(of_model(outline(name).model.to(torch.bfloat16)))


def forecast(work: Work, machine: Machine, rows: int, context: int, drafting: Drafting) -> Forecast:
    def floor(nodes: int) -> float:
        return work.floor(machine, rows, nodes, context)

    def speedup(drafts: int) -> float:
        return drafting.units(drafts) / (drafts * drafting.cost + floor(drafts + 1) / floor(1))

    best = max(range(len(drafting.by_depth) + 1), key=speedup)  # of equal ones the fewest drafts
    plain = rows / floor(1)
    return Forecast(
        rows=rows,
        memory=work.shared + work.routed + work.memory(rows, context),
        pass_seconds=floor(1),
        drafts=best,
        v=floor(best + 1) / floor(1),
        speedup=speedup(best),
        plain=plain,
        fast=plain * speedup(best),
    )
