"""`python -m tools.bench loads`: how long requests take that come at random, by policy, on a simulated clock.

Requests come in a Poisson stream, share passes up to a number of rows, and each accepts its drafts with a chance of its
own, which its scores say. A pass takes a base, and more for each node beyond those that a machine has for nothing.
"""

import math
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
import typer

from mmspec.core.payoff import Payoff
from mmspec.core.policies import Fixed, Policy
from mmspec.core.types import Draft

MOST_ROWS, DEEPEST = 16, 8
BASE, NODE, FREE, BEYOND = 0.020, 0.0004, 16, 0.0012  # seconds; nodes for nothing


@dataclass(frozen=True)
class Shorter(Fixed):
    """The first `k` units of every draft."""

    def trim(self, draft: Draft) -> Draft:
        return replace(draft, valid=draft.valid & (draft.index.depth[:, 1:] <= self.k))


POLICIES: Mapping[str, Callable[[], Policy]] = {
    **{f"{k} units": lambda k=k: Shorter(k) for k in (0, 1, 2, 4, DEEPEST)},  # type: ignore[misc]
    "payoff": lambda: Payoff(DEEPEST),
}


@dataclass
class Request:
    came: float
    left: int  # units
    chance: float  # of a drafted unit


def pass_seconds(rows: int, depth: int) -> float:
    nodes = rows * (1 + depth)
    return BASE + NODE * nodes + BEYOND * max(0, nodes - FREE)


def latencies(policy: Policy, load: float, requests: int, seed: int) -> list[float]:
    """Seconds from coming to the last unit, ascending, of requests of which `load` come in a second."""
    draw, came, waiting = random.Random(seed), 0.0, list[Request]()
    for _ in range(requests):
        came += draw.expovariate(load)
        waiting.append(Request(came, draw.randint(20, 120), draw.uniform(0.2, 0.95)))
    now, running, took = 0.0, list[Request](), list[float]()
    while waiting or running:
        now = now if running else max(now, waiting[0].came)
        while waiting and waiting[0].came <= now and len(running) < MOST_ROWS:
            running.append(waiting.pop(0))
        score = torch.tensor([[n * math.log(row.chance) for n in range(1, DEEPEST + 1)] for row in running])
        kept = policy.trim(Draft.chain(torch.zeros(score.shape, dtype=torch.int64), score=score)).valid.sum(1).tolist()
        emitted = [
            min(row.left, 1 + _accepted(draw, row.chance, most)) for row, most in zip(running, kept, strict=True)
        ]
        seconds = pass_seconds(len(running), max(kept))
        now += seconds
        policy.observe(max(kept), emitted, seconds)
        for row, count in zip(running, emitted, strict=True):
            row.left -= count
        took += [now - row.came for row in running if not row.left]
        running = [row for row in running if row.left]
    return sorted(took)


def _accepted(draw: random.Random, chance: float, most: int) -> int:
    return next((n for n in range(most) if draw.random() >= chance), most)


def loads(
    requests: Annotated[int, typer.Option(min=20, help="Of a run.")] = 200,
    seeds: Annotated[int, typer.Option(min=1, help="Runs, of which the mean is shown.")] = 3,
) -> None:
    """Median and 99th percentile of latencies at three loads: fixed lengths, and `payoff` over all rows' drafts."""
    for load in (0.3, 2.0, 6.0):
        typer.echo(f"{load} requests a second")
        for name, policy in POLICIES.items():
            runs = [latencies(policy(), load, requests, seed) for seed in range(seeds)]
            middle, late = (statistics.mean(run[int(share * len(run))] for run in runs) for share in (0.5, 0.99))
            typer.echo(f"  {name:8} p50 {middle:6.2f} s, p99 {late:6.2f} s")
