"""What a model can do on a GPU, from formulas: memory, the floor of a pass, and where speculation stops paying.

* A pass over n nodes of B rows takes at least t(B, n) = max(bytes read / bandwidth, operations / arithmetic).
* v(n) = t(B, n) / t(B, 1); a drafted unit costs c plain passes.
* A chain of γ drafts emits E(γ) = 1 + a_1 + … + a_γ units a round, where a_d is the probability that the path of a row
  reaches depth d: α^d, if each draft is accepted with probability α (Leviathan et al., arXiv 2211.17192, theorem 3.8).
* Its speed-up is S(γ) = E(γ) / (γ c + v(γ + 1)).

All times are floors: kernels reach a share of them (`efficiency`), and launches and the loop come on top.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mmspec.bench.core.language import of_model
from mmspec.bench.core.shape import known_shapes
from mmspec.bench.core.work import Machine, Work
from mmspec.hosts.outline import outline
from mmspec.registry.suggest import unknown


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
    """One batch size."""

    rows: int  # rows decoded together
    memory: float  # bytes of weights and caches
    pass_seconds: float  # the floor of a plain pass
    drafts: int  # the number of drafts that is fastest; 0: speculation does not pay
    v: float  # v(drafts + 1)
    speedup: float  # S of that number
    plain: float  # units per second of plain decoding, all rows together
    fast: float  # units per second with drafts


def work_of(name: str, dtype: torch.dtype = torch.bfloat16) -> Work:
    """The work of a model in its full size; no weight is read.

    Args:
        name: A shape of `mmspec bench core`; or a language model: `mmspec/…`, a folder with a `config.json`, or a hub
            name.
        dtype: The dtype of the weights.

    Raises:
        ValueError: There is no such shape and no such model.
    """
    known = known_shapes()
    if name in known:
        return Work.of(known[name].workload(torch.device("meta"), dtype, small=False))
    if "/" not in name and not Path(name).is_dir():
        raise ValueError(f"{unknown('shape', name, known)}; or give a folder with a config.json, or a hub name")
    return Work.of(of_model(outline(name).model.to(dtype)))


def forecast(work: Work, machine: Machine, rows: int, context: int, drafting: Drafting) -> Forecast:
    """What a batch can reach.

    Args:
        work: What a pass reads and computes.
        machine: The limits.
        rows: Rows decoded together.
        context: Units of context of every row.
        drafting: The drafts.
    """

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
