"""Lengths that follow the load, on a simulated clock: `payoff` over all requests' drafts, beside fixed lengths."""

import statistics

import pytest

from tools.bench.loads import POLICIES, latencies


@pytest.mark.parametrize("load", [0.3, 2.0, 6.0])
def test_payoff_is_about_as_quick_as_the_best_fixed_length_of_every_load(load: float) -> None:
    middle = {name: statistics.median(latencies(policy(), load, 80, seed=1)) for name, policy in POLICIES.items()}
    fixed = [seconds for name, seconds in middle.items() if name != "payoff"]
    assert middle["payoff"] <= 1.1 * min(fixed) < 0.7 * max(fixed)
