"""Captured rounds that draft by themselves, read one round late; here a CPU is read late, too."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

import mmspec
from mmspec.api.build import decoder_for
from mmspec.core.compile import captured as player
from mmspec.core.compile import rounds
from mmspec.core.compile.protocols import DraftsOfRows
from mmspec.core.compile.rounds import CapturedRound
from mmspec.core.decoder import Decoder, Output
from mmspec.core.policies import Fixed
from mmspec.core.warp import Warp
from mmspec_text.drafters.token_recycling import TokenRecycling
from tests.captured.conftest import forget, rounds_of
from tests.captured.test_text import WIDE, ragged
from tests.support.random_models import random_model

METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain, wide": {"method": "plain", "shape": 5},
    "prompt-lookup": {"k": 5},
    "prompt-lookup, wide": {"method": "prompt-lookup", "k": 5, "shape": 9},
    "prompt-lookup, policy": {"method": "prompt-lookup", "k": 5, "policy": Fixed(2)},
    "token-recycling": {"k": 4},
    "token-recycling, wide": {"method": "token-recycling", "k": 4, "shape": 12},
}
FAST = (("prompt-lookup", 0.0), ("prompt-lookup, policy", 0.9), ("token-recycling, wide", 0.9))
"""In the fast tier every drafter, a width beyond the draft's, a policy, and both kinds of warp."""
GREEDY = Warp.sampling(0)
"""The warp of the other tests, which run on the round of `prompt-lookup` in `FAST`."""


def one_layer() -> Any:
    return random_model(LlamaConfig(**{**WIDE, "num_hidden_layers": 1}), gain=4.0)


@pytest.fixture(scope="module")
def model() -> Any:
    return one_layer()


@pytest.fixture
def own() -> Any:
    """A model that no other test has captured rounds of."""
    return one_layer()


@pytest.fixture(autouse=True)
def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "READ_AT_ONCE", ())


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The events of a call: `launch` of a captured round, and `read` of its counts."""
    happened: list[str] = []
    launch, read = CapturedRound.launch, player.Counts.read
    monkeypatch.setattr(CapturedRound, "launch", lambda *a: (happened.append("launch"), launch(*a))[1])
    monkeypatch.setattr(player.Counts, "read", lambda *a: (happened.append("read"), read(*a))[1])
    return happened


def at_once(events: list[str]) -> bool:
    """True if every round was read before the next one."""
    return bool(events) and events == ["launch", "read"] * (len(events) // 2)


def both(model: Any, method: str, **how: Any) -> tuple[Decoder, Decoder]:
    how = {"method": method, "shape": "one", **METHODS[method], **how}
    return tuple(decoder_for(model, compile=c, **how) for c in (None, True))  # type: ignore[return-value]


def assert_same(found: Output, expected: Output) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found.units, expected.units, strict=True))
    mine, other = found.report, expected.report
    assert mine.compiled and not other.compiled
    for name in ("rounds", "row_rounds", "emitted", "rows", "sizes", "drafted", "width"):
        assert getattr(mine, name) == getattr(other, name), name
    depths = zip_longest(mine.accepted_by_depth, other.accepted_by_depth, fillvalue=0)
    assert all(a == b for a, b in depths)


@pytest.mark.parametrize(
    ("method", "temperature"),
    [
        pytest.param(method, t, marks=[] if (method, t) in FAST else pytest.mark.slow)
        for method in METHODS
        for t in (0.0, 0.9)
    ],
)
def test_units_and_counts_are_the_eager_loops(model: Any, events: list[str], method: str, temperature: float) -> None:
    eager, captured = both(model, method)
    known = rounds_of(captured)
    for seed, limit, ends in ((3, 24, [7, 11]), (4, 17, [60, 59]), (5, 2, [60, 59])):
        call: dict[str, Any] = {"seed": seed, "warp": Warp.sampling(temperature), "ends": ends}
        expected = eager.generate(ragged(), limit, **call)
        events.clear()
        assert_same(captured.generate(ragged(), limit, **call), expected)
        assert events[:2] == ["launch", "launch"] and events[2:4] in (["read", "launch"], ["read"])
        assert events.count("launch") == expected.report.rounds + 1 == events.count("read") + 1
    assert len(rounds_of(captured)) <= len(known) + 1, "one captured round serves all calls"


def test_a_wide_round_has_all_its_nodes(own: Any) -> None:
    """The pass itself has them, not only the report."""
    captured = both(own, "plain, wide")[1]
    captured.generate(ragged(), 4)
    (round,) = captured.captures.pool.rounds
    logits = round.idle().unprocessed
    assert logits is not None and logits.shape[1] == 5


def test_a_memory_is_its_drafters_own(model: Any) -> None:
    """Two drafters over one model, in turns: each remembers its own calls alone."""
    eager, captured = zip(*(both(model, "token-recycling") for _ in range(2)), strict=True)
    for seed in range(3):
        for n in (0, 1):
            call: dict[str, Any] = {"seed": seed + 10 * n, "warp": Warp.sampling(0.9)}
            assert_same(captured[n].generate(ragged(), 20, **call), eager[n].generate(ragged(), 20, **call))
    drafters = [decoder.drafter for decoder in (*eager, *captured)]
    first, second, third, fourth = (d.matrix for d in drafters if isinstance(d, TokenRecycling))
    assert torch.equal(first, third) and torch.equal(second, fourth) and not torch.equal(first, second)


def test_who_watches_reads_every_round(model: Any, events: list[str]) -> None:
    captured = both(model, "prompt-lookup")[1]
    seen: list[int] = []
    output = captured.generate(ragged(), 20, warp=GREEDY, on_step=lambda state: seen.append(sum(state.host.emitted)))
    assert at_once(events) and output.report.compiled
    assert seen == sorted(set(seen)) and seen[-1] == output.report.emitted


def test_stock_numbers_are_drawn_ahead(model: Any, events: list[str]) -> None:
    """The units are the unmodified model's, and the generator is left where that leaves it."""
    for limit, ends in ((24, [7, 11]), (17, [60, 59])):
        call: dict[str, Any] = {"do_sample": True, "max_new_tokens": limit, "eos_token_id": ends, "pad_token_id": 0}
        torch.manual_seed(limit)
        stock, state = model.generate(**ragged(), **call), torch.get_rng_state()
        with mmspec.enable(model, "token-recycling", k=4, shape="one", compile=True) as spec:
            torch.manual_seed(limit)
            events.clear()
            assert torch.equal(model.generate(**ragged(), **call), stock)
        assert torch.equal(torch.get_rng_state(), state) and events[:2] == ["launch", "launch"]
        assert spec.report is not None and spec.report.compiled and spec.report.accepted


def test_an_abandoned_call_leaves_the_round_to_the_next(model: Any, events: list[str]) -> None:
    eager, captured = both(model, "prompt-lookup")
    known = rounds_of(captured)
    rounds = captured.rounds(ragged(), 40, warp=GREEDY, watched=False)
    for _ in range(3):
        next(rounds)
    rounds.close()
    del rounds
    found, expected = (decoder.generate(ragged(), 20, warp=GREEDY) for decoder in (captured, eager))
    assert_same(found, expected)
    assert len(rounds_of(captured)) <= len(known) + 1


def test_scores_that_are_not_finite_are_named(own: Any) -> None:
    captured = both(own, "prompt-lookup")[1]
    state = captured.rounds(ragged(), 20, watched=False)
    for _ in range(2):
        next(state)
    own.lm_head.weight.data[:] = float("nan")
    with pytest.raises(ValueError, match=r"row 0: .*new unit .*NaN"):
        list(state)


def test_a_drafter_that_cannot_be_traced_drafts_outside(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    eager, captured = both(own, "prompt-lookup")
    monkeypatch.setattr(DraftsOfRows, "propose", lambda self, live, noise: live.root.tolist())
    with pytest.warns(UserWarning, match="drafts are made outside of captured rounds"):
        output = captured.generate(ragged(), 20, seed=1)
    assert_same(output, eager.generate(ragged(), 20, seed=1))


def test_calls_of_transformers_are_read_late_where_nobody_watches(model: Any, events: list[str]) -> None:
    stock = model.generate(**ragged(), max_new_tokens=12, do_sample=False)
    with mmspec.enable(model, "prompt-lookup", k=5, shape="one", compile=True):
        assert torch.equal(model.generate(**ragged(), max_new_tokens=12, do_sample=False), stock)
        assert events[:2] == ["launch", "launch"]
        events.clear()
        model.generate(**ragged(), max_new_tokens=12, do_sample=False, max_time=60.0)
        assert at_once(events), "a criterion of the host's clock reads every round"


@pytest.mark.slow
def test_a_thousand_rounds_are_traced_once(model: Any) -> None:
    forget(model)
    torch._dynamo.utils.counters.clear()
    captured, rounds = both(model, "token-recycling")[1], 0
    for seed in range(200):
        rounds += captured.generate(ragged(), 30 - seed % 7, seed=seed, ends=[7]).report.rounds
        if rounds >= 1000:
            break
    assert rounds >= 1000 and torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
