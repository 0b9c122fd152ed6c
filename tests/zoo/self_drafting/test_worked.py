"""Drafts of successive rounds, written out without a cache over unmodified models; shadow tokens, rates, searches."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec_zoo.self_drafting.dynamic_exit import (
    MEMORY,
    DynamicExit,
    DynamicExitOptions,
    ExitMemory,
    matches,
    token_per_layer,
)
from mmspec_zoo.self_drafting.layer_skip import LayerSkip, LayerSkipOptions
from mmspec_zoo.self_drafting.swift import (
    Comb,
    SkipSearch,
    Swift,
    SwiftOptions,
    first_set,
    numbers_between,
    upper_bound,
)
from tests.support.draft_rounds import played
from tests.zoo.self_drafting.conftest import LAYERS

GREEDY = Warp(sample=False)
SURE = 0.4


def behind(layer: int) -> list[int]:
    return list(range(2 * layer, 2 * LAYERS))


def decoder(deep: Any, drafter: Any, k: int) -> Decoder:
    return Decoder(TransformersTarget(deep), drafter, Match(), k=k)


@pytest.mark.parametrize("layer", [1, 3])
def test_layer_skip(deep: Any, without: Callable, next_scores: Callable, prompts: Callable, layer: int) -> None:
    """LayerSkip: k units, one after the other, by the model that ends behind a layer."""
    recorded, accepted = played(decoder(deep, LayerSkip(LayerSkipOptions(exit=layer)), 4), prompts(3), GREEDY)
    short = without(behind(layer))
    assert layer == 1 or max(accepted) > 0, "no draft came true, so nothing was tested"
    for known, done, draft in recorded:
        for row, text in enumerate(known):
            units = text.tolist()
            for unit in draft.units[row].tolist():
                assert done[row] or unit == int(next_scores(short, units, len(text) - 1)[-1].argmax())
                units.append(unit)


@pytest.mark.parametrize("size", [2, 0])
def test_swift(deep: Any, without: Callable, next_scores: Callable, prompts: Callable, size: int) -> None:
    """SWIFT: a chain up to the first unsure unit, and candidates beside each of its units by confidence."""
    options = SwiftOptions(skip=size / 4, sure=SURE, nodes=9, window=256)
    recorded, accepted = played(decoder(deep, Swift(options), 4), prompts(1), GREEDY)
    short, lengths = without(first_set(LAYERS, size)), list[int]()
    for known, _, draft in recorded:
        text, chain, score = known[0].tolist(), list[int](), 0.0
        expected = dict[tuple[int, ...], float]()
        while len(chain) < 4:
            scores = next_scores(short, text + chain, len(text) - 1)[-1]
            sure = float(scores.max().exp())
            number = next(n for least, n in ((0.95, 3), (0.8, 5), (0.5, 8), (0.0, 10)) if sure >= least)
            best = scores.topk(number)
            for unit, own in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                expected[(*chain, unit)] = score + own
            chain, score = [*chain, int(best.indices[0])], score + float(best.values[0])
            if sure < SURE:
                break
        lengths.append(len(chain))
        kept = sorted(expected, key=lambda path: -expected[path])[: options.nodes]
        parents, found = draft.index.parent[0].tolist(), [tuple[int, ...]()]
        for node, unit in enumerate(draft.units[0].tolist(), 1):
            found.append((*found[parents[node]], unit))
        assert set(found[1:]) == set(kept)
        assert draft.score is not None
        for path, reached in zip(found[1:], draft.score[0].tolist(), strict=True):
            assert abs(expected[path] - reached) < 1e-3
    assert len(set(lengths)) > 1 and max(accepted) > 0, "no draft ended early, or none came true"
    if not size:  # the drafter is the target: whatever is drafted along its own choices is accepted
        assert accepted == lengths


def test_a_set_of_swift_is_measured_by_teacher_forcing(
    deep: Any, without: Callable, next_scores: Callable, prompts: Callable
) -> None:
    """Matchness on the last `window` units; round after round one more set, of one size; the best one drafts."""
    drafter = Swift(SwiftOptions(skip=0.5, window=5))
    loop = decoder(deep, drafter, 3)
    state = loop.start(prompts(3), 40, seed=1, warp=GREEDY)
    measured = 0
    while not state.finished and measured < 6:
        before = [state.history[b, int(state.pads[b]) : int(state.known[b])].tolist() for b in range(state.rows)]
        tried = len(drafter.search.tried)
        loop.advance(state)
        if len(drafter.search.tried) == tried:
            continue
        numbers, matchness = drafter.search.tried[-1]
        assert len(numbers) == 2 and not numbers & {0, 1, 6, 7}
        short, right = without(numbers), list[bool]()
        for text in before:
            found = next_scores(short, text[:-1], len(text) - 6).argmax(-1)
            right += (found == torch.tensor(text[-5:])).tolist()
        assert abs(matchness - sum(right) / len(right)) < 1e-6
        assert drafter.search.score == max(score for _, score in drafter.search.tried)
        measured += 1
    assert measured >= 3 and min(state.host.emitted) > 5
    tried = len(drafter.search.tried)
    loop.generate(prompts(1), 30, seed=2)
    assert len(drafter.search.tried) > tried, "the next call goes on with it"


def test_a_search_keeps_the_best_set_and_ends() -> None:
    search = SkipSearch(6, 4)
    assert search.best == first_set(6, 4) == {2, 3, 6, 7} and numbers_between(6) == list(range(2, 10))
    wanted, sizes = {4, 5, 8, 9}, set()
    for _ in range(400):
        if search.over:
            break
        numbers = search.propose()
        sizes.add(len(numbers))
        search.observe(numbers, len(numbers & wanted) / 4)
    assert search.best == wanted and search.score == 1 and sizes == {4}
    vain = SkipSearch(6, 4)
    for _ in range(301):
        vain.observe(vain.propose(), 0.5)
    assert vain.over and vain.in_vain == 300
    assert SkipSearch(6, 0).over and SkipSearch(6, 8).over


def test_the_bound_of_a_gaussian_process() -> None:
    """Where it was observed the mean is nearly the value; far away it is the mean of all, and the bound is higher."""
    seen = torch.tensor([[0.0, 0], [1, 0], [0, 1]], dtype=torch.float64)
    values = torch.tensor([0.2, 0.8, 0.5], dtype=torch.float64)
    near, far = upper_bound(seen, values, torch.tensor([[1.0, 0], [40, 40]], dtype=torch.float64))
    spread = float(values.std(correction=0))
    assert abs(float(far) - (0.5 + 2.5 * spread)) < 1e-6
    assert abs(float(near) - 0.8) < 2.5 * spread * 0.12 + 0.02


def test_exits_by_expected_units_per_layer() -> None:
    """Token-per-layer against its sum, term by term; and an exit that is always right."""
    rates, exits = torch.tensor([0.3, 0.9, 1.0], dtype=torch.float64), torch.tensor([1, 2, 3])
    found = token_per_layer(rates, exits, 5, 4)
    for i, rate in enumerate(rates.tolist()):
        for d in range(6):
            by_hand = sum(rate**power for power in range(d + 1)) / (d * int(exits[i]) + 4)
            assert abs(float(found[i, d]) - by_hand) < 1e-12
    assert float(found[2, 5]) == 6 / (15 + 4)


def test_rates_by_hand() -> None:
    """Two rounds of one row: three of three, then none of two; older rounds weigh less; Laplace's prior."""
    memory = ExitMemory.of(1, torch.device("cpu"))
    assert memory.rates.tolist() == [0.5]
    memory.saw(torch.tensor([[[4, 5, 6]]]), torch.tensor([[4, 5, 6]]), torch.tensor([3]))
    memory.saw(torch.tensor([[[9, 5, 0]]]), torch.tensor([[4, 5, 0]]), torch.tensor([2]))
    assert abs(float(memory.rates) - (3 * MEMORY + 1) / (3 * MEMORY + 1 + 2)) < 1e-12
    right, asked = matches(torch.tensor([[[4, 9, 6]]]), torch.tensor([[4, 5, 6]]), torch.tensor([3]))
    assert (float(right), float(asked)) == (1, 2), "behind a wrong unit, nothing is known"
    assert memory.least_sure == 0
    confidence, accepted = torch.tensor([[0.9, 0.5, 0.1]]), torch.tensor([[True, False, False]])
    memory.drafted(confidence, accepted, torch.tensor([[True, True, False]]))
    assert abs(memory.least_sure - 0.7) < 1e-6


def test_del(deep: Any, without: Callable, next_scores: Callable, prompts: Callable) -> None:
    """Round by round: rates by the shadow tokens of truncated models, the exit and length that they give, the draft."""
    loop = decoder(deep, DynamicExit(DynamicExitOptions(latest=3)), 4)
    recorded, accepted = played(loop, prompts(1), GREEDY, rounds=9)
    shorts = [without(behind(layer)) for layer in (1, 2, 3)]
    right, asked = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    sure, chosen = ExitMemory.of(3, torch.device("cpu")), set()
    for (known, _, draft), (after, _, _), count in zip(recorded, recorded[1:], accepted, strict=False):
        text, new = known[0].tolist(), after[0].tolist()[len(known[0]) :]
        assert len(new) == count + 1
        best, layer, length = max(
            (
                float(sum(((right[i] + 1) / (asked[i] + 2)) ** p for p in range(d + 1)) / (d * (i + 1) + LAYERS)),
                -i,
                -d,
            )
            for i in range(3)
            for d in range(5)
        )
        layer, length = -layer, -length
        expected, confidence = list[int](), list[float]()
        while len(expected) < length:
            scores = next_scores(shorts[layer], text + expected, len(text) - 1)[-1]
            expected.append(int(scores.argmax()))
            confidence.append(float(scores.max().exp()))
            if confidence[-1] < sure.least_sure:
                break
        assert draft.units[0].tolist() == expected, (best, layer, length)
        chosen.add((layer, len(expected)))
        order = torch.arange(len(expected))
        sure.drafted(torch.tensor([confidence]), (order < count)[None], (order <= count)[None])
        for i, short in enumerate(shorts):
            shadow = next_scores(short, text + new[:-1], len(text) - 1).argmax(-1).tolist()
            hits = next((j for j, unit in enumerate(shadow) if unit != new[j]), len(new))
            right[i], asked[i] = MEMORY * right[i] + hits, MEMORY * asked[i] + min(hits + 1, len(new))
    assert len(chosen) > 1 and max(accepted) > 0, "one exit and one length all the time, or nothing came true"


def test_a_row_that_ended_before_a_set_is_measured(deep: Any, prompts: Callable) -> None:
    """It may be shorter than the window; the others' measure does not count it."""
    inputs, drafter = prompts(3), Swift(SwiftOptions(skip=0.5, window=12))
    loop = decoder(deep, drafter, 3)
    plain = Decoder(loop.target).generate(inputs, 30, seed=1, warp=GREEDY).units
    shortest = int(inputs["attention_mask"].sum(1).argmin())
    end = int(plain[shortest][1])
    output = loop.generate(inputs, 30, seed=1, warp=GREEDY, ends=end)
    assert len(output.units[shortest]) == 2 and max(map(len, output.units)) > 14
    assert drafter.search.tried and not output.report.faults
    expected = Decoder(loop.target).generate(inputs, 30, seed=1, warp=GREEDY, ends=end).units
    assert all(torch.equal(a, b) for a, b in zip(output.units, expected, strict=True))


def test_a_comb_is_no_deeper_than_a_pass_has_nodes():
    """Its chain lies in the scratch slots of that pass."""
    assert Comb(nodes=3).levels(9) == 3 and Comb(nodes=3).fed(9) < Comb(nodes=3).width(9) == 3
    assert Comb(nodes=24).levels(9) == 9
