"""Draft models that draft inside of captured rounds: both models' passes, and what the draft model keeps, in one graph.

The text models' own lock-step is in `tests/captured/test_text.py`; here are all shapes of a draft, rules that use its
distribution, late reading, and calls whose drafts are made outside.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from mmspec.core.compile import rounds
from mmspec.core.compile.rounds import CapturedRound
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel, DraftModelInside
from mmspec.core.drafters.shapes import Beam, Branching, Chain, Rerank, Shape
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection, Rule
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.oracles import exact_joint
from mmspec.testing.tiny_models import SIZES
from tests.captured.conftest import forget, lockstep, rounds_of
from tests.captured.test_text import WIDE, ragged
from tests.support.laws import assert_follows
from tests.support.random_models import noisy, random_model

GREEDY, SAMPLED = Warp.sampling(0), Warp.sampling(0.9)
SHAPES: list[tuple[Shape, type[Rule]]] = [
    (Chain(), Match),
    (Chain(), Rejection),
    (Chain(), Block),
    (Rerank(frontier=2, children=2, nodes=5), Match),
    (Beam(2), RecursiveRejection),
    (Branching((2, 1, 2)), RecursiveRejection),
]


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model(LlamaConfig(**{**WIDE, "num_hidden_layers": 1}), gain=4.0)


@pytest.fixture(scope="module")
def both(model: Any) -> Callable[..., tuple[Decoder, Decoder]]:
    """`both(shape, rule)`: a decoder that runs eagerly and one whose rounds are captured; most drafts are right."""
    small = noisy(model, 0.05)

    def make(shape: Shape, rule: type[Rule] = Match, k: int = 3, context: int | None = None) -> tuple[Decoder, Decoder]:
        def decoder() -> Decoder:
            drafting = TransformersTarget(small, drafting=True)
            drafting.context = drafting.context if context is None else context
            return Decoder(
                TransformersTarget(model), DraftModel(drafting, shape), rule(), k=k, shape=None, compile=True
            )

        eager, captured = decoder(), decoder()
        eager.captures.refused = True
        return eager, captured

    return make


def drafting(decoder: Decoder) -> list[CapturedRound]:
    """The captured rounds in which a draft model drafts."""
    return [captured for captured in rounds_of(decoder) if isinstance(captured.plan.drafts, DraftModelInside)]


@pytest.mark.parametrize("k", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("warp", [pytest.param(GREEDY, marks=pytest.mark.slow), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("shape", "rule"), [pytest.param(*c, marks=[] if c[1] is Rejection else pytest.mark.slow) for c in SHAPES]
)
def test_every_shape_and_rule(both: Any, model: Any, shape: Shape, rule: type[Rule], warp: Warp, k: int) -> None:
    """One round, traced once, for texts and prompts of several lengths; of one level nothing is kept."""
    forget(model)
    eager, captured = both(shape, rule, k)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert lockstep(eager, captured, ragged(), 24, seed=3, warp=warp, ends=[7, 11]) > 3
    shorter = {name: value[:, 3:] for name, value in ragged().items()}
    assert lockstep(eager, captured, shorter, 17, seed=4, warp=warp, ends=[7, 11]) > 3
    assert captured.generate(ragged(), 24, seed=3, warp=warp, ends=[60, 59]).report.accepted > 5
    assert len(rounds_of(captured)) == len(drafting(captured)) == 1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1


def test_rounds_are_read_one_round_late(both: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a CPU is read late, too: how much the draft model lacks is known on the device alone."""
    monkeypatch.setattr(rounds, "READ_AT_ONCE", ())
    eager, captured = both(Chain(), Rejection)
    for limit, ends in ((24, [7, 11]), (13, [60])):
        expected, found = (d.generate(ragged(), limit, seed=3, warp=SAMPLED, ends=ends) for d in (eager, captured))
        assert all(torch.equal(a, b) for a, b in zip(found.units, expected.units, strict=True))
        assert found.report.accepted == expected.report.accepted > 5
        assert found.report.compiled and found.report.rounds == expected.report.rounds


LAW_ROWS, LENGTH, VOCAB = 4_000, 3, 7


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("shape", "rule"), [(Chain(), Rejection), (Chain(), Block), (Branching((2, 1)), RecursiveRejection)]
)
def test_the_joint_is_the_targets(shape: Shape, rule: type[Rule], dtype: torch.dtype) -> None:
    """In half precision drafts inside round otherwise than outside, so that units differ; their law does not."""
    model = random_model(LlamaConfig(**{**SIZES, "vocab_size": VOCAB, "num_hidden_layers": 1}), gain=4.0).to(dtype)
    prompt = [3, 4, 5, 3]
    drafter = DraftModel(TransformersTarget(noisy(model, 0.3), drafting=True), shape)
    decoder = Decoder(TransformersTarget(model), drafter, rule(), k=2, shape=None, compile=True)

    def drawn(seed: int, rows: int) -> torch.Tensor:
        parts = []
        for part in range(rows // 1_000):
            ids = torch.tensor([prompt]).expand(1_000, -1)
            output = decoder.generate(ids, LENGTH + 1, seed=1_000 * seed + part, warp=Warp.sampling(1.0))
            assert output.report.compiled and output.report.accepted
            parts.append(torch.stack(list(output.units))[:, :LENGTH])
        return torch.cat(parts)

    def after(emitted: tuple[int, ...]) -> torch.Tensor:
        with torch.no_grad():
            return model(torch.tensor([[*prompt, *emitted]])).logits[0, -1].float().softmax(-1)

    assert_follows(drawn, exact_joint(after, LENGTH, VOCAB), rows=LAW_ROWS)
    assert drafting(decoder)


@pytest.mark.slow
def test_a_call_goes_on_outside_and_inside_again(both: Any, model: Any) -> None:
    """The draft model's cache goes into the rounds and comes back."""
    forget(model)
    eager, captured = both(Chain())
    inputs = {name: value[:1] for name, value in ragged().items()}
    states = [d.rounds(inputs, 40, seed=3, warp=SAMPLED, pauses=(9, 24)) for d in (eager, captured)]
    for one, other in zip(*states, strict=True):
        if one.waits:
            captured.captures.inside = None if one.reach == 9 else captured.drafter
        assert one.step is not None and other.step is not None
        assert torch.equal(one.emitted, other.emitted) and torch.equal(one.step.count, other.step.count)
    assert one.report.accepted == other.report.accepted > 5
    assert len(drafting(captured)) == 1 and len(rounds_of(captured)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "context"), [(Chain(sure=0.3), None), (Chain(), 30)], ids=["ends", "context"])
def test_drafts_that_the_host_ends_are_made_outside(both: Any, model: Any, shape: Shape, context: int | None) -> None:
    forget(model)
    eager, captured = both(shape, Match, 3, context)
    assert lockstep(eager, captured, ragged(), 24, seed=3, warp=SAMPLED) > 3
    assert rounds_of(captured) and not drafting(captured)


@pytest.mark.slow
def test_weights_that_changed_are_drafted_with(both: Any, model: Any) -> None:
    forget(model)
    eager, captured = both(Chain())
    lockstep(eager, captured, ragged(), 12, seed=3, warp=GREEDY)
    (first,) = drafting(captured)
    with torch.no_grad():
        captured.drafter.model.model.lm_head.weight.mul_(-1)
    try:
        lockstep(eager, captured, ragged(), 12, seed=3, warp=GREEDY)
        (second,) = drafting(captured)
        assert second is not first, "weights are baked in, so that what was captured before must not be used"
    finally:
        with torch.no_grad():
            captured.drafter.model.model.lm_head.weight.mul_(-1)
