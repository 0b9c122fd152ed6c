"""Captured rounds with trained heads: the captured pass returns the states, and the head drafts outside of it.

Rounds are compared with the eager loop's in lock-step, drafts included. The equality tests of every kind of head also
run again with compiled rounds (the mark `compiled`).
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.capture_pool import NAME
from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match, RecursiveRejection, Rejection, Rule
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from tests.captured.conftest import _traced_alone, inductor, lockstep  # noqa: F401  fixtures
from tests.heads.conftest import GREEDY, SAMPLED, checkpoint

TREE: dict[str, Any] = {"form": "rerank", "width": 3, "nodes": 8}
CHAIN: dict[str, Any] = {"form": "chain"}


@pytest.fixture
def both() -> Callable[..., tuple[Decoder, Decoder]]:
    """`both(head, rule, form)`: a decoder that runs eagerly and one whose rounds are captured."""
    vars(llama()).pop(NAME, None)  # what other tests captured

    def make(name: str, form: dict[str, Any], rule: Callable[[], Rule] = Match) -> tuple[Decoder, Decoder]:
        def decoder(compile: bool | None) -> Decoder:
            drafter = Eagle(EagleOptions(model=checkpoint(name), probe=False, **form))
            return Decoder(TransformersTarget(llama()), drafter, rule(), k=3, shape=None, compile=compile)

        eager, captured = decoder(True), decoder(True)
        eager.captures.compile = None
        return eager, captured

    return make


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def test_every_round_equals_the_eager_loops(both: Any, rows: dict[str, Tensor]) -> None:
    """A tree, a ragged batch, prompts and texts of several lengths: one plan, traced once."""
    eager, captured = both("eagle-3", TREE)
    before = graphs()
    assert lockstep(eager, captured, rows, 30, seed=3, warp=SAMPLED) > 3
    shorter = {key: value[:, 2:] for key, value in rows.items()}
    assert lockstep(eager, captured, shorter, 17, seed=4, warp=SAMPLED) > 3
    assert captured.generate(rows, 30, seed=3, warp=SAMPLED).report.accepted > 0
    assert len(captured.captures.pool.rounds) == 1 and graphs() == before + 1


@pytest.mark.slow
@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("form", "rule"),
    [
        (CHAIN, Match),
        (TREE, Match),
        (CHAIN, Rejection),
        ({"form": "branching", "branching": (2, 2, 1)}, RecursiveRejection),
    ],
)
@pytest.mark.parametrize("name", ["eagle-1", "eagle-3.1", "pruned"])
def test_every_head_rule_and_form(
    name: str, form: dict[str, Any], rule: type, warp: Any, both: Any, rows: dict[str, Tensor]
) -> None:
    eager, captured = both(name, form, rule)
    assert lockstep(eager, captured, rows, 24, seed=3, warp=warp) > 3


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
    assert found == [found[0]] * 4 and found[0] <= 2, "a round was compiled again"
