"""Captured rounds with trained heads: the draft, the target's pass and what the head reads next are one function.

Rounds are compared with the eager loop's in lock-step, drafts included. The equality tests of every kind of head also
run again with compiled rounds (the mark `compiled`).
"""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.compile import rounds
from mmspec.core.compile.pool import NAME
from mmspec.core.compile.rounds import CapturedRound
from mmspec.core.decoder import Decoder
from mmspec.core.guided import NULL_INPUTS
from mmspec.core.policies import Fixed
from mmspec.core.rules import Match, RecursiveRejection, Rejection, Rule
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.registry import installed, pair
from mmspec.testing.tiny_models import llama, prompt
from mmspec_text.drafters.dflash import DFlash, DFlashOptions
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from mmspec_text.drafters.heads.inside import NAME as HEADS
from mmspec_text.drafters.heads.inside import HeadInside, RowsInside
from mmspec_text.drafters.heads.pathwise.drafter import PathOptions
from tests.captured.conftest import _traced_alone, inductor, lockstep, rounds_of  # noqa: F401  fixtures
from tests.heads.conftest import GREEDY, SAMPLED, checkpoint
from tests.support.examples import EXAMPLES
from tests.support.examples.heads import PRODUCT, random_dflash
from tests.support.path_heads import KINDS, LAYOUTS

TREE: dict[str, Any] = {"form": "rerank", "width": 3, "nodes": 8}
CHAIN: dict[str, Any] = {"form": "chain"}


@pytest.fixture
def both() -> Callable[..., tuple[Decoder, Decoder]]:
    """`both(head, rule, form)`: a decoder that runs eagerly and one whose rounds are captured."""
    vars(llama()).pop(NAME, None)  # what other tests captured
    vars(llama().get_input_embeddings()).pop(HEADS, None)

    def make(name: str, form: dict[str, Any], rule: Callable[[], Rule] = Match) -> tuple[Decoder, Decoder]:
        def decoder(compile: bool | None) -> Decoder:
            drafter = Eagle(EagleOptions(model=checkpoint(name), probe=False, **form))
            return Decoder(TransformersTarget(llama()), drafter, rule(), k=3, shape=None, compile=compile)

        eager, captured = decoder(True), decoder(True)
        eager.captures.refused = True
        return eager, captured

    return make


def drafting(decoder: Decoder) -> list[CapturedRound]:
    """The captured rounds of a decoder's target in which a head drafts."""
    return [captured for captured in rounds_of(decoder) if isinstance(captured.plan.drafts, HeadInside)]


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def test_every_round_equals_the_eager_loops(both: Any, rows: dict[str, Tensor]) -> None:
    """A tree, a ragged batch, prompts and texts of several lengths: one round, its draft included, traced once."""
    eager, captured = both("eagle-3", TREE)
    before = graphs()
    assert lockstep(eager, captured, rows, 30, seed=3, warp=SAMPLED) > 3
    shorter = {key: value[:, 2:] for key, value in rows.items()}
    assert lockstep(eager, captured, shorter, 17, seed=4, warp=SAMPLED) > 3
    assert captured.generate(rows, 30, seed=3, warp=SAMPLED).report.accepted > 0
    assert len(rounds_of(captured)) == len(drafting(captured)) == 1 and graphs() == before + 1


@pytest.mark.parametrize("warp", [GREEDY, pytest.param(SAMPLED, marks=pytest.mark.slow)], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("form", "rule"),
    [*(pytest.param(form, Match, marks=pytest.mark.slow) for form in (CHAIN, TREE)), (CHAIN, Rejection)],
)
def test_rounds_are_read_one_round_late(
    both: Any, rows: dict[str, Tensor], form: Any, rule: Any, warp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a CPU is read late, too: the head's memory is on the device alone."""
    monkeypatch.setattr(rounds, "READ_AT_ONCE", ())
    eager, captured = both("eagle-3", form, rule)
    for limit, ends in ((13, [6, 5]), (24, [])):
        expected, found = (d.generate(rows, limit, seed=4, warp=warp, ends=ends) for d in (eager, captured))
        assert all(torch.equal(a, b) for a, b in zip(found.units, expected.units, strict=True))
        assert found.report.accepted == expected.report.accepted and found.report.rounds == expected.report.rounds
        assert found.report.compiled
    assert found.report.accepted


@pytest.mark.parametrize("form", [CHAIN, TREE], ids=["chain", "tree"])
def test_half_precision(rows: dict[str, Tensor], form: Any) -> None:
    """Drafts inside of rounds in bfloat16: to the bit the text of plain decoding of that width."""
    target = TransformersTarget(copy.deepcopy(llama()).to(torch.bfloat16))
    drafter = Eagle(EagleOptions(model=checkpoint("eagle-3"), probe=False, **form))
    captured = Decoder(target, drafter, k=3, shape="one", compile=True)
    plain = Decoder(target, shape=captured.one_width(), compile=True)
    found, expected = (d.generate(rows, 24, seed=3, warp=SAMPLED) for d in (captured, plain))
    assert drafting(captured) and found.report.compiled and found.report.accepted
    assert all(torch.equal(a, b) for a, b in zip(found.units, expected.units, strict=True))


def test_a_call_goes_on_eagerly_behind_a_pause(both: Any) -> None:
    """The head's memory goes into the rounds and comes back: units that it never read, too."""
    eager, captured = both("eagle-3", CHAIN)
    states = [d.rounds(prompt([0]), 30, seed=3, warp=SAMPLED, pauses=(9, 19)) for d in (eager, captured)]
    for one, other in zip(*states, strict=True):
        if one.waits and one.reach == 9:
            captured.captures.inside = None  # from here on drafts are made outside, over the same cache
        if one.waits and one.reach == 19:
            captured.captures.inside = captured.drafter
        assert one.step is not None and other.step is not None
        assert torch.equal(one.emitted, other.emitted) and torch.equal(one.step.count, other.step.count)
    assert one.report.accepted == other.report.accepted > 0


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0, 0.9])
def test_heads_draft_under_guidance(both: Any, rows: dict[str, Tensor], temperature: float) -> None:
    """They read the conditional half of the states."""
    inputs = {**rows, NULL_INPUTS: {name: value.flip(0) for name, value in rows.items()}}
    warp = Warp.sampling(temperature, guidance=2.0)
    assert lockstep(*both("eagle-3", CHAIN), inputs, 24, seed=1, warp=warp) > 3


class Changing(Fixed):
    """Budgets that change from round to round."""

    def budget(self) -> int:
        object.__setattr__(self, "round", vars(self).get("round", -1) + 1)
        return (self.k, self.k, 1, 0, 0, self.k, self.k)[self.round % 7]


@pytest.mark.slow
def test_drafts_of_changing_length_are_made_outside(both: Any, rows: dict[str, Tensor]) -> None:
    eager, captured = both("eagle-1", CHAIN)
    eager.policy, captured.policy = Changing(3), Changing(3)
    assert lockstep(eager, captured, rows, 40, seed=3, warp=GREEDY) > 14
    assert rounds_of(captured) and not drafting(captured)


@pytest.mark.slow
def test_weights_that_changed_are_drafted_with(both: Any, rows: dict[str, Tensor]) -> None:
    eager, captured = both("eagle-3", CHAIN)
    assert lockstep(eager, captured, rows, 12, seed=3, warp=GREEDY) > 3
    (first,) = drafting(captured)
    for decoder in (eager, captured):
        with torch.no_grad():
            decoder.drafter.network.fc.weight.neg_()
    assert lockstep(eager, captured, rows, 12, seed=3, warp=GREEDY) > 3
    (second,) = drafting(captured)
    assert second is not first, "weights are baked in, so that what was captured before must not be used"


@pytest.mark.slow
def test_a_head_that_is_loaded_again_is_not_captured_again(both: Any, rows: dict[str, Tensor]) -> None:
    """A decoder may be put together for every call. Another head, or the same one with a window, is another."""
    found, captured = [], []
    for name, form in [("eagle-1", CHAIN), ("eagle-1", CHAIN), ("eagle-3", CHAIN), ("eagle-1", {**CHAIN, "window": 4})]:
        decoder = both(name, form)[1]
        before = graphs()
        assert decoder.generate(rows, 8, seed=1, warp=GREEDY).report.compiled
        found.append(graphs() - before)
        captured.append(len(drafting(decoder)))
    assert found == [1, 0, 1, 1] and captured == [1, 1, 2, 3], "the first head's round serves the second"


@pytest.mark.slow
def test_what_cannot_be_captured_is_drafted_eagerly(
    both: Any, rows: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: RowsInside, *args: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(RowsInside, "reserve", refused)
    monkeypatch.delenv("MMSPEC_STRICT", raising=False)
    eager, captured = both("eagle-3", CHAIN)
    with pytest.warns(UserWarning, match="drafts are made outside of captured rounds: .*no compiler"):
        assert lockstep(eager, captured, rows, 20, seed=3, warp=GREEDY) > 3
    assert rounds_of(captured) and not drafting(captured)


@pytest.mark.slow
@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("form", "rule"),
    [
        (CHAIN, Match),
        (TREE, Match),
        (CHAIN, Rejection),
        ({"form": "branching", "branching": (2, 2, 1)}, RecursiveRejection),
        ({"form": "heap", "width": 2, "nodes": 5}, RecursiveRejection),
        ({"form": "greedy", "width": 2, "nodes": 5}, Match),
    ],
)
@pytest.mark.parametrize("name", ["eagle-1", "eagle-3.1", "pruned"])
def test_every_head_rule_and_form(
    name: str, form: dict[str, Any], rule: type, warp: Any, both: Any, rows: dict[str, Tensor]
) -> None:
    eager, captured = both(name, form, rule)
    assert lockstep(eager, captured, rows, 24, seed=3, warp=warp) > 3
    assert len(rounds_of(captured)) == len(drafting(captured)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("form", "rule"), [(TREE, Match), (CHAIN, Rejection)])
@pytest.mark.parametrize("name", KINDS)
def test_heads_that_step_along_paths(
    name: str, form: dict[str, Any], rule: type, warp: Any, rows: dict[str, Tensor], tmp_path: Path
) -> None:
    layout = LAYOUTS[name]
    folder = str(layout.save(tmp_path))

    def decoder() -> Decoder:
        drafter = layout.drafter(PathOptions(model=folder, probe=False, **form))
        return Decoder(TransformersTarget(llama()), drafter, rule(), k=3, shape=None, compile=True)

    vars(llama()).pop(NAME, None)
    vars(llama().get_input_embeddings()).pop(HEADS, None)
    eager, captured = decoder(), decoder()
    eager.captures.refused = True
    assert lockstep(eager, captured, rows, 24, seed=3, warp=warp) > 3
    assert len(rounds_of(captured)) == len(drafting(captured)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("form", "rule"), [(TREE, Match), (CHAIN, Match), (CHAIN, Rejection)])
@pytest.mark.parametrize("name", ["dflash", "p-eagle"])
def test_heads_that_score_a_block(
    name: str, form: dict[str, Any], rule: type, warp: Any, rows: dict[str, Tensor]
) -> None:
    example = EXAMPLES[f"text:{name}"]()[0]

    def decoder() -> Decoder:
        pairing = pair(installed(), f"text:{name}", offers=TransformersTarget(llama()).offers)
        drafter = pairing.drafter.load()(replace(example.options, probe=False, **form))
        return Decoder(TransformersTarget(llama()), drafter, rule(), k=3, shape=None, compile=True)

    vars(llama()).pop(NAME, None)
    eager, captured = decoder(), decoder()
    eager.captures.refused = True
    assert lockstep(eager, captured, rows, 24, seed=3, warp=warp) > 3
    assert len(rounds_of(captured)) == len(drafting(captured)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Match, Rejection])
def test_a_confidence_head_ends_drafts_inside(rule: type, rows: dict[str, Tensor]) -> None:
    def decoder() -> Decoder:
        head = random_dflash(replace(PRODUCT, confidence=16))
        drafter = DFlash(DFlashOptions(model=head, probe=False, sure=0.5, **CHAIN))
        return Decoder(TransformersTarget(llama()), drafter, rule(), k=3, shape=None, compile=True)

    vars(llama()).pop(NAME, None)
    eager, captured = decoder(), decoder()
    eager.captures.refused = True
    assert lockstep(eager, captured, rows, 24, seed=3, warp=SAMPLED) > 3
    assert len(rounds_of(captured)) == len(drafting(captured)) == 1


@pytest.mark.slow
def test_heads_that_read_other_layers_share_no_round(both: Any, rows: dict[str, Tensor]) -> None:
    """EAGLE-1 reads one boundary, EAGLE-3 three: what is captured for one returns nothing for the other."""
    decoders = [both(name, CHAIN)[1] for name in ("eagle-1", "eagle-3")]
    for decoder in (*decoders, *decoders):
        assert decoder.generate(rows, 6, seed=1, warp=GREEDY).report.compiled
    assert len(decoders[0].captures.pool.rounds) == 2


@pytest.mark.slow
def test_compiled_by_inductor(both: Any, rows: dict[str, Tensor], inductor: None) -> None:  # noqa: F811
    """Frozen weights; texts of several lengths."""
    eager, captured = both("eagle-3", TREE)
    before, found = graphs(), []
    for limit in (30, 17, 29, 6):
        expected, ours = (d.generate(rows, limit, seed=5, warp=SAMPLED) for d in (eager, captured))
        assert all(torch.equal(a, b) for a, b in zip(ours.units, expected.units, strict=True))
        assert ours.report.compiled and not expected.report.compiled
        assert ours.report.acceptance_length == pytest.approx(expected.report.acceptance_length, rel=0.2)
        found.append(graphs() - before)
    assert found == [1] * 4, "a round was compiled again"


@pytest.mark.gpu
@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("form", [CHAIN, TREE])
def test_one_graph_a_round_on_cuda(form: dict[str, Any], warp: Any, rows: dict[str, Tensor], inductor: None) -> None:  # noqa: F811
    target = TransformersTarget(copy.deepcopy(llama()).cuda())
    there = {key: value.cuda() for key, value in rows.items()}
    found = []
    for compile in (False, None, True):
        drafter = Eagle(EagleOptions(model=checkpoint("eagle-3"), probe=False, **form))
        decoder = Decoder(target, drafter, k=3, shape="one", compile=compile)
        found.append([decoder.generate(there, limit, seed=5, warp=warp) for limit in (30, 17, 29)])
    assert [each.plan.compiled for each in drafting(decoder)] == [False, True], "one of each kind: the model keeps both"
    for eager, *captured in zip(*found, strict=True):
        for each in captured:
            assert all(torch.equal(a, b) for a, b in zip(eager.units, each.units, strict=True))
            assert each.report.acceptance_length == pytest.approx(eager.report.acceptance_length, rel=0.2)
    assert all(each.report.recorded for each in found[1]) and all(each.report.compiled for each in found[2])


WAITS = """
import json
import sys
from tests.support import logical_device as logical
from mmspec.core.compile import rounds

class Direct:
    def __init__(self, method, device, before=None, **how):
        self.method, self.before = method, before
    def __call__(self):
        if self.before is not None:
            self.before()
        return self.method()
    warm, recorded = __call__, False

rounds.OneLaunch = Direct  # torch does not trace the logical device
rounds.compiled = lambda function, **how: function
from mmspec.api.build import decoder_for
from mmspec.core.warp import Warp
from mmspec.testing import tiny_models
from tests.support.device_cases import copied
from tests.support.device_run import moved, sent
from tests.support.examples import EXAMPLES

for name in sys.argv[1:]:
    found = EXAMPLES[f"text:{name}"]()
    example = found[1] if isinstance(found, list | tuple) else found
    def begun(place, send, compile):
        options = {key: copied(value, place) for key, value in vars(example.options).items()}
        model = copied(tiny_models.llama(), place)
        decoder = decoder_for(model, name, k=4, options=options, shape="one", compile=compile)
        call = {"seed": 3, "warp": Warp.sampling(0.8), "watched": False}
        return decoder, decoder.rounds(send(tiny_models.prompt([0, 1])), 14, **call)
    decoder, states = begun(lambda model: model, lambda inputs: inputs, None)
    *_, expected = states
    waits = []
    with logical.Meter(True) as meter:
        decoder, states = begun(moved, sent, True)
        for state in states:
            waits.append(meter.waits.total())
            meter.reset()
        same = all((a.cpu() == b).all() for a, b in zip(state.output(), expected.output(), strict=True))
    inside = state.player.round.plan.drafts is not None
    print(json.dumps({"name": name, "same": bool(same), "inside": inside, "waits": waits}))
"""


@pytest.mark.slow
def test_one_wait_a_round_on_the_logical_device() -> None:
    """Of the captured round's function, untraced; the first round, which is captured, waits more often."""
    kinds = [
        "draft-model",
        "draft-tree",
        "eagle",
        "mtp",
        "medusa",
        "hydra",
        "clover",
        "clover-2",
        "mlp-speculator",
        "arctic-lstm",
        "dflash",
        "p-eagle",
        "pard",
        "ppd",
        "gated-lora",
    ]
    command = [sys.executable, "-c", WAITS, *kinds]
    root = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (root, root / "plugins", os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert len(found) == len(kinds)
    for case in found:
        # Those with probes draft outside: the first round has nothing to draft from
        probes = case["name"] in ("ppd", "gated-lora")
        assert case["same"] and case["inside"] != probes and len(case["waits"]) > 3, case
        assert set(case["waits"][2 + probes :]) == {1}, case
