"""Upper bounds of speed: what the hardware, the acceptance and the loop would allow, beside what was measured.

* v(N) = T(N) / T(1), where T(N) is the seconds of a target pass over N nodes; c = a drafter's pass / T(1).
* The floor of a pass is max(bytes read / bandwidth, operations / arithmetic). F_hw(N) = floor / measured.
* A round that drafts for d seconds and verifies n nodes should take d + v(n) T(1) (Leviathan et al., arXiv 2211.17192,
  where d = γ c T(1) and n = γ + 1). F_pipe = that / the measured seconds of the rounds.
* The best tree of n nodes (Sequoia, arXiv 2402.12374), where a_k is the probability that the child of rank k is
  accepted, holds the n nodes with the largest path products. F_tree = the drafter's acceptance length / that of the
  best tree of as many nodes.
* F_total = measured speed-up / max over n of best tree(n) / (floor(n) / floor(1)): drafts that cost nothing, on a
  pass at its floor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mmspec.bench.timing import timed
from mmspec.core.drafters.static_tree import expected_units, likeliest_tree
from mmspec.report.result import Row
from tools.report.whole import Limits


@dataclass(frozen=True)
class Floor:
    """The least time that a pass can take on a machine."""

    bandwidth: float  # memory bandwidth in bytes per second
    arithmetic: float  # floating-point operations per second
    read: float  # bytes that every pass reads, whatever the number of nodes
    operations: float  # floating-point operations of one node

    def __call__(self, nodes: int) -> float:
        """Seconds of a pass over `nodes` nodes."""
        return max(self.read / self.bandwidth, self.operations * nodes / self.arithmetic)


def measure_floor(read: float, operations: float, device: str = "cpu") -> Floor:
    """The floor on this machine, from the fastest of seven sums over 256 MiB and of seven large matrix products."""
    numbers = torch.ones(2**26, device=device)
    square = torch.ones(1536, 1536, device=device)
    bandwidth = numbers.numel() * 4 / min(timed(numbers.sum, device) for _ in range(7))
    arithmetic = 2 * 1536**3 / min(timed(lambda: square @ square, device) for _ in range(7))
    return Floor(bandwidth, arithmetic, read, operations)


def limits_of(seconds: Mapping[int, float], floor: Floor, **measured: float) -> Limits:
    """v(N) and F_hw(N), with the measurements behind them.

    Args:
        seconds: Seconds of a pass by its number of nodes; 1 is one of the keys.
        floor: The floor of a pass.
        **measured: Further numbers to be kept in the result.
    """
    return Limits(
        v_of_n={str(n): round(t / seconds[1], 4) for n, t in seconds.items()},
        F_hw={str(n): round(floor(n) / t, 4) for n, t in seconds.items()},
        measured={
            "seconds_of_one_node": seconds[1],
            **measured,
            "bytes_per_second": floor.bandwidth,
            "operations_per_second": floor.arithmetic,
            "bytes_read": floor.read,
            "operations_of_one_node": floor.operations,
        },
    )


def loop_efficiency(row: Row, seconds: Mapping[int, float]) -> float:
    """Seconds that drafting and bare target passes take / seconds that the rounds took (F_pipe).

    Args:
        row: A row of batch 1.
        seconds: Seconds of a pass by its number of nodes; other numbers are interpolated linearly.
    """
    passes = sum(count * _between(int(nodes), seconds) for nodes, count in row.passes_by_nodes.items())
    return (row.draft_s + passes) / (row.draft_s + row.verify_s + row.rest_s)


def _between(nodes: int, seconds: Mapping[int, float]) -> float:
    below = max(n for n in seconds if n <= nodes)
    above = min((n for n in seconds if n >= nodes), default=below)
    share = 0.0 if above == below else (nodes - below) / (above - below)
    return seconds[below] + share * (seconds[above] - seconds[below])


def best_tree(by_rank: Sequence[float], nodes: int) -> float:
    """Units that the best tree of so many nodes, root included, is expected to emit."""
    return expected_units(*likeliest_tree(tuple(by_rank), nodes, nodes - 1), by_rank)


def best_speedup(by_rank: Sequence[float], floor: Floor, most: int = 64) -> float:
    """The largest speed-up by drafts of this acceptance, if they cost nothing and passes run at their floor."""
    return max(best_tree(by_rank, n) / (floor(n) / floor(1)) for n in range(1, most + 1))
