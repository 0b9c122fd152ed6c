"""Captured rounds with trained heads: the captured pass returns the states, and the head's draft is captured, too.

Rounds are compared with the eager loop's in lock-step, drafts included. The equality tests of every kind of head also
run again with compiled rounds (the mark `compiled`).
"""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.compile.pool import NAME, pool_on
from mmspec.core.decoder import Decoder
from mmspec.core.guided import NULL_INPUTS
from mmspec.core.policies import Fixed
from mmspec.core.rules import Match, RecursiveRejection, Rejection, Rule
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from mmspec_text.drafters.heads.captured.draft import NAME as HEADS
from mmspec_text.drafters.heads.captured.draft import CapturedDraft
from mmspec_text.drafters.heads.captured.rows import RowsDraft
from mmspec_text.drafters.heads.pathwise.drafter import PathOptions
from mmspec_text.drafters.heads.pathwise.head import PrefixHead
from tests.captured.conftest import _traced_alone, inductor, lockstep  # noqa: F401  fixtures
from tests.heads.conftest import GREEDY, SAMPLED, checkpoint
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
        eager.captures._refused = True
        return eager, captured

    return make


def drafts_of(decoder: Decoder) -> list[CapturedDraft]:
    """What is captured of a decoder's drafts."""
    return pool_on(decoder.drafter.network).rounds  # type: ignore[attr-defined]  # one with a head


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def test_every_round_equals_the_eager_loops(both: Any, rows: dict[str, Tensor]) -> None:
    """A tree, a ragged batch, prompts and texts of several lengths: one round and one draft, each traced once."""
    eager, captured = both("eagle-3", TREE)
    before = graphs()
    assert lockstep(eager, captured, rows, 30, seed=3, warp=SAMPLED) > 3
    shorter = {key: value[:, 2:] for key, value in rows.items()}
    assert lockstep(eager, captured, shorter, 17, seed=4, warp=SAMPLED) > 3
    assert captured.generate(rows, 30, seed=3, warp=SAMPLED).report.accepted > 0
    assert len(captured.captures.pool.rounds) == 1 and len(drafts_of(captured)) == 1 and graphs() == before + 2


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0, 0.9])
def test_heads_draft_under_guidance(both: Any, rows: dict[str, Tensor], temperature: float) -> None:
    """They read the conditional half of the states."""
    inputs = {**rows, NULL_INPUTS: {name: value.flip(0) for name, value in rows.items()}}
    warp = Warp.sampling(temperature, guidance=2.0)
    assert lockstep(*both("eagle-3", CHAIN), inputs, 24, seed=1, warp=warp) > 3


class Changing(Fixed):
    """Budgets that change from round to round: only the full one is that of the captured draft."""

    def budget(self) -> int:
        object.__setattr__(self, "round", vars(self).get("round", -1) + 1)
        return (self.k, self.k, 1, 0, 0, self.k, self.k)[self.round % 7]


@pytest.mark.slow
def test_rounds_that_differ_are_drafted_eagerly_over_the_same_cache(both: Any, rows: dict[str, Tensor]) -> None:
    """A smaller budget, and no draft, after which more rows are unread than the captured draft reads."""
    eager, captured = both("eagle-1", CHAIN)
    eager.policy, captured.policy = Changing(3), Changing(3)
    assert lockstep(eager, captured, rows, 40, seed=3, warp=GREEDY) > 14
    assert len(drafts_of(captured)) == 1


@pytest.mark.slow
def test_weights_that_changed_are_drafted_with(both: Any, rows: dict[str, Tensor]) -> None:
    eager, captured = both("eagle-3", CHAIN)
    assert lockstep(eager, captured, rows, 12, seed=3, warp=GREEDY) > 3
    (first,) = drafts_of(captured)
    for decoder in (eager, captured):
        with torch.no_grad():
            decoder.drafter.network.fc.weight.neg_()
    assert lockstep(eager, captured, rows, 12, seed=3, warp=GREEDY) > 3
    (second,) = drafts_of(captured)
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
        captured.append(drafts_of(decoder))
    assert found[0] >= 2 and found[1] == 0, "a round and a draft, and then nothing"
    assert found[2] >= 2 and found[3] == 1, "EAGLE-3 reads other states, so that its round is another, too"
    assert not captured[1], "the first head's draft serves the second"


@pytest.mark.slow
def test_what_cannot_be_captured_is_drafted_eagerly(
    both: Any, rows: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: RowsDraft, state: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(RowsDraft, "warm", refused)
    monkeypatch.delenv("MMSPEC_STRICT", raising=False)
    eager, captured = both("eagle-3", CHAIN)
    with pytest.warns(UserWarning, match="drafts of EagleNetwork are not captured, .* RuntimeError: no compiler"):
        assert lockstep(eager, captured, rows, 20, seed=3, warp=GREEDY) > 3
    assert not drafts_of(captured)


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
    assert len(drafts_of(captured)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("form", "rule"), [(TREE, Match), (CHAIN, Rejection)])
@pytest.mark.parametrize("name", KINDS)
def test_heads_that_step_along_paths(
    name: str, form: dict[str, Any], rule: type, warp: Any, rows: dict[str, Tensor], tmp_path: Path
) -> None:
    """Those that read all features through attention draft eagerly."""
    layout = LAYOUTS[name]
    folder = str(layout.save(tmp_path))

    def decoder() -> Decoder:
        drafter = layout.drafter(PathOptions(model=folder, probe=False, **form))
        return Decoder(TransformersTarget(llama()), drafter, rule(), k=3, shape=None, compile=True)

    vars(llama().get_input_embeddings()).pop(HEADS, None)
    eager, captured = decoder(), decoder()
    eager.captures._refused = True
    assert lockstep(eager, captured, rows, 24, seed=3, warp=warp) > 3
    network = captured.drafter.network
    assert len(drafts_of(captured)) == (not isinstance(network, PrefixHead))


@pytest.mark.slow
def test_heads_that_read_other_layers_share_no_round(both: Any, rows: dict[str, Tensor]) -> None:
    """EAGLE-1 reads one boundary, EAGLE-3 three: what is captured for one returns nothing for the other."""
    decoders = [both(name, CHAIN)[1] for name in ("eagle-1", "eagle-3")]
    for decoder in (*decoders, *decoders):
        assert decoder.generate(rows, 6, seed=1, warp=GREEDY).report.compiled
    assert len(decoders[0].captures.pool.rounds) == 2


@pytest.mark.slow
def test_compiled_by_inductor(both: Any, rows: dict[str, Tensor], inductor: None) -> None:  # noqa: F811
    """Frozen weights, and rounds without a draft in a pass over the root alone, which returns states, too."""
    eager, captured = both("eagle-3", TREE)
    before, found = graphs(), []
    for limit in (30, 17, 29, 6):
        expected, ours = (d.generate(rows, limit, seed=5, warp=SAMPLED) for d in (eager, captured))
        assert all(torch.equal(a, b) for a, b in zip(ours.units, expected.units, strict=True))
        assert ours.report.compiled and not expected.report.compiled
        assert ours.report.acceptance_length == pytest.approx(expected.report.acceptance_length, rel=0.2)
        found.append(graphs() - before)
    assert found == [found[0]] * 4 and found[0] <= 3, "a round or a draft was compiled again"


@pytest.mark.gpu
@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("form", [CHAIN, TREE])
def test_one_graph_a_draft_on_cuda(form: dict[str, Any], warp: Any, rows: dict[str, Tensor], inductor: None) -> None:  # noqa: F811
    target = TransformersTarget(copy.deepcopy(llama()).cuda())
    there = {key: value.cuda() for key, value in rows.items()}
    found = []
    for compile in (False, True):
        drafter = Eagle(EagleOptions(model=checkpoint("eagle-3"), probe=False, **form))
        decoder = Decoder(target, drafter, k=3, shape="one", compile=compile)
        found.append([decoder.generate(there, limit, seed=5, warp=warp) for limit in (30, 17, 29)])
    assert len(drafts_of(decoder)) == 1
    for eager, captured in zip(*found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(eager.units, captured.units, strict=True))
        assert captured.report.acceptance_length == pytest.approx(eager.report.acceptance_length, rel=0.2)


WAITS = """
import json
import sys
from tests.support import logical_device as logical
from mmspec.core.compile import rounds
from mmspec_text.drafters.heads.captured import draft as drafts

class Direct:
    def __init__(self, method, device, frozen=False):
        self.warm = self.method = method
    def __call__(self):
        return self.method()

rounds.Compiled = drafts.Compiled = Direct  # torch does not trace the logical device
from mmspec.api.build import decoder_for
from mmspec.core.warp import Warp
from mmspec.testing import tiny_models
from tests.support.device_cases import copied
from tests.support.device_run import moved, sent
from tests.support.examples import EXAMPLES

for name in sys.argv[1:]:
    _, example, *_ = EXAMPLES[f"text:{name}"]()
    def begun(place, send, compile):
        options = {key: copied(value, place) for key, value in vars(example.options).items()}
        model = copied(tiny_models.llama(), place)
        decoder = decoder_for(model, name, k=4, options=options, shape="one", compile=compile)
        return decoder, decoder.start(send(tiny_models.prompt([0, 1])), 14, seed=3, warp=Warp.sampling(0.8))
    decoder, expected = begun(lambda model: model, lambda inputs: inputs, None)
    while not expected.finished:
        decoder.advance(expected)
    waits = []
    with logical.Meter(True) as meter:
        decoder, state = begun(moved, sent, True)
        while not state.finished:
            meter.reset()
            decoder.advance(state)
            waits.append(meter.waits.total())
        same = all((a.cpu() == b).all() for a, b in zip(state.output(), expected.output(), strict=True))
    print(json.dumps({"name": name, "same": bool(same), "compiled": state.report.compiled, "waits": waits}))
"""


@pytest.mark.slow
def test_one_wait_a_round_on_the_logical_device() -> None:
    """Of the captured round's parts, untraced; those rounds that capture wait more often (a tree of its own: two)."""
    kinds = ["eagle", "mtp", "medusa", "hydra", "clover", "mlp-speculator", "arctic-lstm", "dflash", "p-eagle", "ppd"]
    command = [sys.executable, "-c", WAITS, *kinds, "apple-mtp"]
    root = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (root, root / "plugins", os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert len(found) == len(kinds) + 1
    for case in found:
        assert case["same"] and case["compiled"] and len(case["waits"]) > 3, case
        assert set(case["waits"][2:]) == {1}, case
