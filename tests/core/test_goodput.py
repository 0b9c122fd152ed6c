"""The policy `goodput`, on simulated rounds with given costs and acceptance by depth; no clock is read."""

import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from mmspec.api.build import decoder_for
from mmspec.core import decoder as core
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.goodput import Goodput, GoodputOptions
from mmspec.core.payoff import Payoff, PayoffOptions
from mmspec.core.rules import Rejection
from mmspec.core.step_costs import StepCosts
from mmspec.testing import tiny_models
from mmspec.testing.oracles import exact_joint
from mmspec.testing.toys.history import HistoryTarget
from tests.support.laws import assert_follows


def run(policy, cost, chance, rounds=600, rows=1, seed=0, noise=0.0):
    """Rounds of a decoder whose drafts are accepted with `chance(depth)` and cost `cost(depth)`. Budgets, in order."""
    rng, budgets = random.Random(seed), []
    for _ in range(rounds):
        depth = policy.budget()
        emitted = []
        for _ in range(rows):
            n = 1
            while n <= depth and rng.random() < chance(n):
                n += 1
            emitted.append(n)
        policy.observe(depth, emitted, cost(depth) * (1 + noise * rng.random()))
        budgets.append(depth)
    return budgets


def favourite(budgets):
    return Counter(budgets[len(budgets) // 2 :]).most_common(1)[0][0]


def true_goodput(depth, cost, chance):
    reached, expected = 1.0, 1.0
    for d in range(1, depth + 1):
        reached *= chance(d)
        expected += reached
    return expected / cost(depth)


@pytest.mark.parametrize("slope", [0.02, 0.1, 0.3, 0.8])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8, 0.95])
def test_finds_what_brute_force_finds(slope, rate):
    def cost(depth):
        return 1 + slope * depth

    def chance(depth):
        return rate * 0.98**depth

    policy = Goodput(8)
    assert policy.depths == [0, 1, 2, 4, 8]
    chosen = favourite(run(policy, cost, chance, rows=4, noise=0.02))
    goodput = {d: true_goodput(d, cost, chance) for d in policy.depths}
    # Hysteresis may leave it at a depth that is within `gain` of the best; estimates add a little.
    assert goodput[chosen] > 0.92 * max(goodput.values()), (chosen, goodput)


def test_a_step_in_the_measured_cost_is_seen():
    """Up to four nodes are free, five cost double: no smooth formula would stop at four."""
    assert favourite(run(Goodput(8), lambda d: 1.0 if d <= 4 else 2.0, lambda d: 0.9)) == 4


def test_nothing_accepted_means_mostly_no_draft():
    budgets = run(Goodput(8), lambda d: 1 + 0.15 * d, lambda d: 0.0)
    assert budgets[100:].count(0) > 0.9 * len(budgets[100:])
    assert set(budgets[100:]) == {0, 1}, "now and then it must look whether that is still so"


def test_all_accepted_and_free_means_k():
    budgets = run(Goodput(6), lambda d: 1.0, lambda d: 1.0)
    assert budgets[20:].count(6) > 0.9 * len(budgets[20:])


def test_dearer_verification_never_means_a_deeper_draft():
    chosen = [favourite(run(Goodput(8), lambda d, s=s: 1 + s * d, lambda d: 0.8, rows=8)) for s in (0.01, 0.1, 0.3, 2)]
    assert chosen == sorted(chosen, reverse=True) and chosen[0] == 8 and chosen[-1] == 0


def test_a_small_gain_does_not_change_the_depth():
    """Depth 4 wins at first; then 8 becomes 3 % better, then 30 % better."""
    policy = Goodput(8, GoodputOptions(gain=0.1))
    base = {0: 1.0, 1: 1.1, 2: 1.2, 4: 1.4}
    at_par = 1.4 * 9 / 5  # seconds at which depth 8 is as good as depth 4, all accepted
    assert favourite(run(policy, (base | {8: at_par * 1.2}).__getitem__, lambda d: 1.0)) == 4
    assert favourite(run(policy, (base | {8: at_par * 0.97}).__getitem__, lambda d: 1.0)) == 4
    assert favourite(run(policy, (base | {8: at_par * 0.77}).__getitem__, lambda d: 1.0)) == 8


def test_it_follows_a_text_that_changes():
    policy = Goodput(8)
    assert favourite(run(policy, lambda d: 1 + 0.1 * d, lambda d: 0.0)) == 0
    assert favourite(run(policy, lambda d: 1 + 0.1 * d, lambda d: 0.97, rounds=2000)) == 8
    assert favourite(run(policy, lambda d: 1 + 0.1 * d, lambda d: 0.0)) == 0


@pytest.mark.parametrize("slow", [lambda n, depth, seen: n < 4, lambda n, depth, seen: depth not in seen])
def test_slow_first_rounds_do_not_count(slow):
    """A warm-up of everything, and a compilation at the first round of every depth: both a hundred times as slow."""
    policy, seen = Goodput(8), set()
    for n in range(60):
        depth = policy.budget()
        policy.observe(depth, [depth + 1], 100.0 if slow(n, depth, seen) else 1.0)
        seen.add(depth)
    assert policy.budget() == 8 and {load.cost(d) for load in policy._loads.values() for d in policy.depths} == {1.0}


def test_every_load_has_a_table_of_its_own():
    """For one row drafts are nearly free; for 64 rows they do not pay. One object serves both calls."""
    policy = Goodput(4)
    for _ in range(2):
        assert favourite(run(policy, lambda d: 1 + 0.02 * d, lambda d: 0.8)) == 4
        assert favourite(run(policy, lambda d: 5 * (1 + d), lambda d: 0.8, rows=64, rounds=100)) == 0
    budgets = run(policy, lambda d: 1 + 0.02 * d, lambda d: 0.8, rounds=40)
    assert budgets[1:].count(4) > 30, "what it learnt of one row was kept"


def test_depths_between_the_measured_ones_are_interpolated():
    policy = Goodput(16)
    for depth, seconds in [(16, 9), (16, 9), (2, 2), (2, 2)]:
        policy._next = depth
        policy.observe(depth, [1], seconds)
    (load,) = policy._loads.values()
    costs = [load.cost(d) for d in range(17)]
    assert costs == sorted(costs) and costs[2] == 2 and costs[9] == 5.5 and costs[0] == 2


def test_a_line_never_leads_to_nothing():
    """A disturbed plain round makes drafts look cheaper than none, the more so the deeper they are."""
    policy = Goodput(16)
    for depth, seconds in [(0, 9), (0, 9), (8, 5), (8, 5)]:
        policy._next = depth
        policy.observe(depth, [1], seconds)
    (load,) = policy._loads.values()
    assert load.cost(16) == 5 and load.cost(4) == 7


def test_a_drafter_without_a_word_is_asked_again():
    """Rounds without a proposal are as fast as plain ones: this must not make plain decoding look better."""
    policy = Goodput(4)
    for _ in range(200):
        asked = policy.budget()
        policy.observe(0, [1], 1.0 if asked else 5.0)
    (load,) = policy._loads.values()
    assert policy.budget() > 0 and load.cost(0) == 5.0


def test_k_of_zero_and_one():
    assert set(run(Goodput(0), lambda d: 1.0, lambda d: 1.0)) == {0}
    assert favourite(run(Goodput(1), lambda d: 1.0, lambda d: 0.5)) == 1


class Clock:
    """Every reading is later than the one before, by steps that make some depths look cheap and others dear."""

    def __init__(self):
        self.now, self.rng = 0.0, random.Random(3)

    def perf_counter(self):
        self.now += self.rng.choice([0.01, 0.1, 1.0])
        return self.now


LARGE = HistoryTarget.random(3, seed=3)
PROMPT = torch.tensor([[0, 1], [2, 2], [1, 0]])


POLICIES = {
    "goodput": lambda k, probe: Goodput(k, GoodputOptions(probe=probe, gain=0)),
    "payoff": lambda k, probe: Payoff(k, PayoffOptions(gain=0)),
}
policies = pytest.mark.parametrize("policy", POLICIES)


@policies
def test_output_does_not_change_under_match(policy, monkeypatch):
    monkeypatch.setattr(core, "time", Clock())
    decoder = Decoder(LARGE, DraftModel(LARGE.near(4)), k=4, policy=POLICIES[policy](4, 3))
    depths = set()
    for seed in range(4):
        state = decoder.start(PROMPT, 60, seed=seed)
        while not state.finished:
            decoder.advance(state)
            depths.add(state.step.draft.index.deepest)
        plain = Decoder(LARGE).generate(PROMPT, 60, seed=seed).units
        assert all(torch.equal(a, b) for a, b in zip(plain, state.output(), strict=True))
    assert depths >= ({0, 1, 2, 4} if policy == "goodput" else set()) and len(depths) > 2, "the clock makes it try them"


@policies
def test_distribution_does_not_change_under_rejection(policy, monkeypatch):
    """Accepted units of a round decide depths of later rounds only; what is known before a node's own draw decides
    whether it is verified.
    """
    monkeypatch.setattr(core, "time", Clock())
    made = POLICIES[policy](3, 2)

    def sample(seed, rows):
        decoder = Decoder(LARGE, DraftModel(LARGE.near(4)), Rejection(), k=3, policy=made)
        return torch.stack(decoder.generate(PROMPT[:1].expand(rows, -1), 5, seed=seed).units)

    assert_follows(sample, exact_joint(LARGE.next_distribution([0, 1]), 5, 3), rows=60_000)


def test_policies_are_found_by_name():
    model = tiny_models.llama()
    policy = decoder_for(model, "prompt-lookup", k=6, policy="goodput", options={"probe": 9, "gain": 0.2}).policy
    assert isinstance(policy, Goodput) and policy.depths == [0, 1, 2, 4, 6] and policy.options.probe == 9
    with pytest.raises(ValueError, match="'probe' is 1, allowed is int >= 2"):
        decoder_for(model, "prompt-lookup", policy="goodput", options={"probe": 1})
    policy = decoder_for(model, "suffix", k=6, policy="payoff", options={"memory": 9, "gain": 0.2}).policy
    assert isinstance(policy, Payoff) and policy.budget() == 6 and policy.options.memory == 9
    with pytest.raises(ValueError, match="'gain' is 2"):
        decoder_for(model, "suffix", policy="payoff", options={"gain": 2})


def test_a_batch_ends_with_its_last_row():
    """Half of the rows accept every draft, the other half none: drafting only makes the call longer."""

    def called(order):
        policy, budgets = Goodput(8), []
        for _ in range(200):
            depth = policy.budget()
            policy.observe(depth, order([1, 1, depth + 1, depth + 1]), 1 + 0.3 * depth)
            budgets.append(depth)
        return favourite(budgets)

    assert called(lambda emitted: emitted) == 0
    assert called(lambda emitted: emitted[::-1]) == 8
    assert called(lambda emitted: [*emitted[::-1], 0, 0, 0]) == 8, "rows that have ended are not asked"


@pytest.mark.parametrize("rows", [1, 2])
def test_nobody_warms_up_with_the_deepest_drafts(rows):
    """The cost of a first, short call: a few drafts of middle depth, and a few plain rounds, which cost nothing."""
    budgets = run(Goodput(10), lambda depth: 1 + depth, lambda depth: 0.0, rounds=48, rows=rows)
    assert max(budgets) == 4 and sum(budgets) <= 3 * 4 + 4, "drafted units, of which none was accepted"


def test_a_short_first_call_gains_from_drafts_that_pay():
    """Forty units, all drafts right, a node costs a tenth of a pass: the depth grows without visiting all depths."""
    policy, emitted, rounds = Goodput(10), 0, 0
    while emitted < 40:
        depth = policy.budget()
        policy.observe(depth, [depth + 1], 1 + 0.1 * depth)
        emitted, rounds = emitted + depth + 1, rounds + 1
    assert rounds <= 10


def test_looks_become_rare_while_they_lose():
    """Drafts never pay: of 2,000 rounds hardly any is drafted, where every 16th was."""
    budgets = run(Goodput(8), lambda d: 1 + 0.15 * d, lambda d: 0.05, rounds=2000)
    assert set(budgets[200:]) == {0, 1}
    assert sum(budgets[200:]) <= 1800 / 16 / 2


def test_one_bad_measurement_is_soon_forgotten():
    """Another program took the machine while the first drafts were tried; they pay, and come back within the call."""
    policy, budgets = Goodput(8), []
    for n in range(60):
        depth = policy.budget()
        policy.observe(depth, [depth + 1], (50.0 if n < 3 else 1.0) * (1 + 0.05 * depth))
        budgets.append(depth)
    assert budgets[-1] == 8 and budgets.count(0) < 20


def test_a_silent_drafter_costs_its_asking():
    """In nine of ten rounds the drafter proposes nothing, which takes a fifth of a pass; the tenth gains one unit."""
    policy, asked = Goodput(4), 0
    for n in range(400):
        depth = policy.budget()
        asked += depth > 0
        speaks = depth > 0 and n % 10 == 0
        policy.observe(depth if speaks else 0, [2 if speaks else 1], 1.2 if depth else 1.0)
    assert asked < 100


def test_the_decoder_tells_who_is_behind():
    told = []

    class Watching:
        def budget(self):
            return 3

        def trim(self, draft):
            return draft

        def observe(self, depth, emitted, seconds):
            told.append(list(emitted))

    target = HistoryTarget.random(3, seed=0)
    decoder = Decoder(target, DraftModel(target.near(1)), k=3, policy=Watching())
    seen = []
    decoder.generate(
        torch.tensor([[0, 1]]).expand(4, 2), 12, seed=[1, 2, 3, 4], on_step=lambda s: seen.append(list(s.host.emitted))
    )
    for before, now, emitted in zip(seen, seen[1:], told, strict=False):
        order = sorted(range(4), key=before.__getitem__)
        assert emitted == [now[row] - before[row] for row in order]
    assert any(len(set(before)) > 1 for before in seen), "the rows must part"


FLAT = {1: 5.0, 8: 5.1, 16: 5.3, 32: 5.8, 64: 7.0}
"""A GPU with one row: 64 nodes cost little more than one."""
STEEP = {1: 6.0, 8: 13.0, 16: 26.0, 32: 52.0, 64: 104.0}
"""The same with 64 rows: from 8 nodes on arithmetic takes longer than reading the weights."""
BUCKETS = (1, 8, 16, 32, 64)


def table():
    rows = {1: FLAT, 8: {n: 5.0 + 0.08 * max(0, n - 16) for n in BUCKETS}, 64: STEEP}
    return StepCosts({(r, n): ms / 1e3 for r, costs in rows.items() for n, ms in costs.items()})


def rounded(costs, rows, slower=1.0):
    """Seconds of a round of a depth, when passes have the sizes of buckets."""

    def seconds(depth):
        size = next(n for n in BUCKETS if n > depth)
        return slower * costs(rows, size)

    return seconds


def bucketed(costs=None, k=63, **options):
    return Goodput(k, GoodputOptions(buckets=BUCKETS, **options), costs=table() if costs is None else costs)


def test_drafts_fill_the_buckets():
    policy = bucketed()
    assert policy.depths == [0, 7, 15, 31, 63]
    assert bucketed(k=5).depths == [0, 5] and bucketed(k=7).depths == [0, 7] and bucketed(k=20).depths == [0, 7, 15, 20]
    budgets = run(policy, rounded(table(), 1), lambda d: 0.9)
    assert set(budgets) <= {0, 7, 15, 31, 63}, "nothing recompiles"


def knowing(policy, width):
    policy.know(width)
    return policy


def test_buckets_count_the_nodes_of_trees():
    assert knowing(Goodput(20, GoodputOptions(buckets=(1, 8, 16))), lambda depth: 2 * depth).depths == [0, 3, 7]
    policy = knowing(Goodput(4, GoodputOptions(buckets=(1, 8))), lambda depth: 63 * (depth > 0))
    assert policy.depths == [0], "trees of 64 nodes fit no pass of 8"


def test_the_table_caps_rows_times_nodes():
    """With 64 rows 8 nodes are the most that can pay: beyond, seconds grow with the nodes, and units no faster."""
    few, many = bucketed(), bucketed()
    budgets = run(few, rounded(table(), 1), lambda d: 0.99)
    assert favourite(budgets) == 63
    budgets = run(many, rounded(table(), 64), lambda d: 0.99, rows=64)
    assert favourite(budgets) == 7 and max(budgets[1:]) == 7, "deeper drafts are not even probed"


@pytest.mark.parametrize(("rate", "best"), [(0.4, 0), (0.9, 7)])
def test_at_64_rows_speculation_is_off_where_it_does_not_pay(rate, best):
    """8 nodes cost 2.2 plain rounds; a chain of 7 emits 1.7 units at a rate of 0.4, and 5.7 at 0.9."""
    budgets = run(bucketed(), rounded(table(), 64), lambda d: rate, rows=64, rounds=2000)
    assert favourite(budgets) == best
    assert budgets[500:].count(best) > 0.9 * len(budgets[500:])


def test_where_no_depth_can_pay_none_is_probed():
    """A round of two nodes costs twice a plain one: even drafts that are all right gain nothing."""
    costs = StepCosts({(1, n): float(n) for n in (1, 2, 4, 8)})
    budgets = run(Goodput(4, costs=costs), lambda d: d + 1.0, lambda d: 1.0)
    assert set(budgets[1:]) == {0}


def test_a_table_replaces_the_warm_up_of_plain_rounds():
    policy, slow = bucketed(), rounded(table(), 1, slower=3.0)
    budgets = run(policy, slow, lambda d: 0.95, rounds=8)
    assert 0 not in budgets[:4] and 63 in budgets[:4], "it is three times as slow here, which changes nothing"


def test_a_table_of_a_faster_machine_serves_a_slower_one():
    """Every round takes three times as long: depths that were not measured yet must not look cheap for that."""
    budgets = run(bucketed(), rounded(table(), 1, slower=3.0), lambda d: 0.5, rounds=6)
    assert budgets == [15, 15, 15, 7, 7, 7], "no probe is due yet"


def test_a_table_of_another_machine_is_overruled_by_what_is_measured():
    """The table says that drafts are nearly free; here each node costs half a plain round."""
    policy = Goodput(8, costs=StepCosts({(1, 1): 1.0, (1, 16): 1.01}))
    assert favourite(run(policy, lambda d: 1 + 0.5 * d, lambda d: 0.3)) == 0


def test_hysteresis_holds_with_a_table():
    """Depths 7 and 15 are within the gain of each other: noise does not make it change to and fro."""
    costs = StepCosts({(1, 1): 1.0, (1, 8): 1.0, (1, 16): 1.0 * 16 / 8 * 0.98})
    policy = Goodput(15, GoodputOptions(buckets=(1, 8, 16), gain=0.1, probe=10**6), costs=costs)
    budgets = run(policy, lambda d: {0: 1.0, 7: 1.0, 15: 1.96}[d], lambda d: 1.0, noise=0.01, rounds=300)
    changes = sum(a != b for a, b in pairwise(budgets[20:]))
    assert changes <= 4


def test_between_measured_rows_and_nodes_the_table_is_linear():
    costs = StepCosts({(1, 1): 1.0, (1, 3): 2.0, (8, 1): 8.0, (8, 3): 16.0})
    assert costs(1, 2) == 1.5 and costs(8, 2) == 12.0
    assert costs(1, 5) == 3.0, "beyond the largest size the line goes on"
    assert costs(2, 1) == pytest.approx(2.0) and costs(15, 1) == pytest.approx(15.0)


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def a_round(**changed):
    return {"section": "round", "shape": "a", "rows": 1, "nodes": 1, "ms": 2.0} | changed


def test_a_table_is_what_the_bench_writes(tmp_path):
    """Lines of other sections, and sizes that could not be measured, are passed over; the fastest way counts."""
    file = write(
        tmp_path / "core.jsonl",
        {"section": "machine", "bytes_per_second": 1.0},
        a_round(variant="eager"),
        a_round(variant="compiled", ms=1.0),
        a_round(nodes=8, ms=1.5),
        {"section": "pass", "shape": "b", "rows": 1, "nodes": 1, "ms": 9.0},
        {"section": "round", "shape": "b", "stopped": "no time left"},
    )
    policy = Goodput(7, GoodputOptions(costs=file))
    assert policy._costs.seconds == {(1, 1): 1e-3, (1, 8): 1.5e-3}
    policy.observe(policy.budget(), [1], 1.0)
    (load,) = policy._loads.values()
    assert load.cost(7) == 1.5e-3 and load.depths == [0, 1, 2, 4, 7]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "no table of costs: rounds of 1 node are missing for any rows"),
        ([a_round(nodes=8)], r"rounds of 1 node are missing for \[1\] rows"),
        ([a_round(), a_round(shape="b")], "has rounds of a, b; a table has those of one model"),
        ([a_round(ms=0)], "rows, nodes and seconds are positive"),
        ([a_round(ms=float("nan"))], "rows, nodes and seconds are positive"),
        ([a_round(rows=True)], "not True, 1 and 2.0"),
        ([a_round(ms="fast")], "not 1, 1 and 'fast'"),
        ([[1]], "every line holds an object"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path, lines, says):
    with pytest.raises(ValueError, match=says):
        StepCosts.read(Path(write(tmp_path / "x.jsonl", *lines)))


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        Goodput(4, GoodputOptions(costs=str(tmp_path / "gone.jsonl")))


def test_a_call_with_a_table_and_buckets(tmp_path):
    """Through the names that users give; the output stays plain's."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    file = write(tmp_path / "core.jsonl", *(a_round(rows=r, nodes=n) for r in (1, 8) for n in (1, 8, 16)))
    options = {"buckets": [1, 8, 16], "costs": file}
    decoder = decoder_for(model, "token-recycling", k=6, policy="goodput", options=options)
    prompt = torch.tensor([[1, 5, 7, 5, 7]])
    output = decoder.generate(prompt, 30, seed=1)
    plain = decoder_for(model, "plain").generate(prompt, 30, seed=1)
    assert torch.equal(output.units[0], plain.units[0]) and output.report.faults == 0
    most = max(decoder.drafter.width(depth) + 1 for depth in decoder.policy.depths)
    assert 0 in decoder.policy.depths and most <= 16
    with pytest.raises(ValueError, match="'buckets\\[0\\]' is 0"):
        decoder_for(model, "token-recycling", policy="goodput", options={"buckets": [0]})
