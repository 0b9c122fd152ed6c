"""Captured rounds of rules that draw fresh numbers: every rule, and every kind of distribution that a draft has."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

import mmspec
from mmspec.api.build import decoder_for
from mmspec.core.compile.proposal import WINDOW
from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical, Mixed, PointMass
from mmspec.core.noise import OffsetSource, Round
from mmspec.core.philox import PhiloxSource
from mmspec.core.rules import Block, RecursiveRejection, Rejection, Rule, Synthetic
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import SIZES
from mmspec_image.drafters.jacobi import ImageJacobi, JacobiOptions
from mmspec_image.rules.grouped import Grouped
from mmspec_image.rules.relaxed import Relaxed, RelaxedOptions
from tests.captured.conftest import forget, lockstep
from tests.support.examples.image import llamagen
from tests.support.random_models import noisy, random_model

VOCAB = 61
RULES: dict[str, type[Rule]] = {
    "rejection": Rejection,
    "block": Block,
    "recursive-rejection": RecursiveRejection,
    "synthetic": Synthetic,
}
KINDS = ("none", "points", "dense", "sparse", "mixed", "mixed points")


class Drawing:
    """Chains of a kind of distribution; shorter ones and none in some rounds.

    Args:
        kind: One of `KINDS`, or `changing`: another one in every round.
    """

    offers = frozenset({"chain", "q"})
    needs: frozenset[str] = frozenset()

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def bind(self, target: Any) -> None:
        embedding, head = target.model.get_input_embeddings().weight, target.model.lm_head.weight
        self.table = torch.softmax((embedding @ head.T).detach() * 4, -1)  # [vocab, vocab]

    def width(self, k: int) -> int:
        return k

    def start(self, state: Any, inputs: Any) -> Any:
        return 0

    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        state.memory += 1
        kind = KINDS[state.memory % len(KINDS)] if self.kind == "changing" else self.kind
        k = max(0, k - state.memory % 5)
        q = Categorical(self.table[state.root][:, None].expand(-1, k, -1))
        if kind == "sparse":
            q = Categorical.top(q, 5)
        points = (state.root[:, None] + torch.arange(k)) % VOCAB
        random = (torch.arange(k) % 2 == 0).expand(state.rows, -1)
        drawn = q.draw(noise.chain(1, k)) if k else points
        if kind in ("dense", "sparse"):
            return Draft.chain(drawn, q)
        if kind == "mixed":
            units = torch.where(random, drawn, points)
            return Draft.chain(units, Mixed(q, random, units))
        if kind == "mixed points":
            return Draft.chain(points, Mixed(PointMass(points), random, points))
        return Draft.chain(points, None if kind == "none" else PointMass(points))

    def observe(self, state: Any, step: Any) -> None: ...


@pytest.fixture(scope="module")
def model() -> Any:
    sizes = {**SIZES, "num_hidden_layers": 1, "vocab_size": VOCAB, "hidden_size": 32, "num_attention_heads": 4}
    return random_model(LlamaConfig(**sizes), gain=1.0)


def ragged() -> dict[str, Any]:
    """Three prompts, two of which are padded."""
    torch.manual_seed(1)
    ids = torch.randint(2, VOCAB, (3, 5)).repeat(1, 4)
    mask = torch.ones_like(ids)
    mask[1, :7], mask[2, :13] = 0, 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def both(model: Any, made: Callable[[], Decoder]) -> tuple[Decoder, Decoder]:
    """Two decoders of one width, of which the first runs the eager loop."""
    forget(model)
    eager, captured = made(), made()
    eager.captures.refused = True
    return eager, captured


FAST = {("rejection", "mixed"), ("block", "dense"), ("recursive-rejection", "sparse")}
OPTIONS: dict[str, Any] = {"seed": 3, "warp": Warp.sampling(0.9), "ends": [7, 11]}


@pytest.mark.parametrize(
    ("rule", "kind"),
    [pytest.param(r, k, marks=[] if (r, k) in FAST else pytest.mark.slow) for r in RULES for k in KINDS],
)
def test_every_rule_with_every_kind_of_draft(model: Any, rule: str, kind: str) -> None:
    target = TransformersTarget(model)
    eager, captured = both(model, lambda: Decoder(target, Drawing(kind), RULES[rule](), k=4, shape="one", compile=True))
    assert lockstep(eager, captured, ragged(), 24, **OPTIONS) > 6
    torch._dynamo.utils.counters.clear()
    lockstep(eager, captured, ragged(), 17, **{**OPTIONS, "seed": 4})
    assert not torch._dynamo.utils.counters["stats"].get("unique_graphs"), "the second call traces nothing"


def test_rounds_without_a_draft_draw_with_the_calls_key(model: Any) -> None:
    """They may have a captured round of one node, over the same rows."""
    target = TransformersTarget(model)
    eager, captured = both(model, lambda: Decoder(target, Drawing("dense"), Rejection(), k=4, shape=None, compile=True))
    lockstep(eager, captured, ragged(), 24, **OPTIONS)
    assert set(captured.generate(ragged(), 24, **OPTIONS).report.sizes) == {1, 5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "how", "dtype"),
    [
        ("draft-model", {"rule": "rejection"}, torch.float32),
        ("draft-model", {"rule": "block"}, torch.float32),
        ("draft-model", {"rule": "recursive-rejection"}, torch.float32),
        ("prompt-lookup", {"rule": "rejection"}, torch.float32),
        ("prompt-lookup", {"rule": "rejection"}, torch.bfloat16),
        ("rsd", {}, torch.float32),
        ("rsd", {"options": {"form": "branching"}}, torch.float32),
    ],
)
def test_draft_models_and_trees(model: Any, method: str, how: dict[str, Any], dtype: torch.dtype) -> None:
    """In half precision the drafts of a model round otherwise inside: their law is in `test_draft_models`."""
    half = copy.deepcopy(model).to(dtype)
    drafter = noisy(half, 0.3) if method != "prompt-lookup" else None
    eager, captured = both(half, lambda: decoder_for(half, method, k=3, drafter=drafter, compile=True, **how))
    lockstep(eager, captured, ragged(), 24, **OPTIONS)
    lockstep(eager, captured, ragged(), 17, **{**OPTIONS, "warp": Warp.sampling(0)})
    rounds = captured.captures.pool.rounds
    assert len(rounds) == 2, "one for each warp"
    assert rounds[0].cache is rounds[1].cache, "over one cache"


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Rejection, Relaxed, lambda: Relaxed(RelaxedOptions(delta=0.4)), Grouped])
@pytest.mark.parametrize("redraw", ["coupled", "independent"])
def test_windows_of_pictures(rule: Any, redraw: Any) -> None:
    found = llamagen()

    def decoder() -> Decoder:
        drafter = ImageJacobi(JacobiOptions(redraw=redraw))
        return Decoder(found.target, drafter, rule(), k=4, shape="one", compile=True)

    eager, captured = both(found.target.model, decoder)
    for seed in range(2):
        lockstep(eager, captured, found.prompt((0, 1)), 24, seed=seed, warp=Warp.sampling(0.9, guidance=2.0))
    assert len(captured.captures.pool.rounds) == 1, "the first pass has no distributions, and needs no plan of its own"


@pytest.mark.slow
def test_families_that_change_from_round_to_round(model: Any) -> None:
    """A call goes back to the round that it had; drafts of one family share a round."""
    target = TransformersTarget(model)

    def decoder() -> Decoder:
        return Decoder(target, Drawing("changing"), Rejection(), k=4, shape="one", compile=True)

    eager, captured = both(model, decoder)
    for seed in range(3):
        lockstep(eager, captured, ragged(), 40, seed=seed)
    families = [round.plan.family for round in captured.captures.pool.rounds]
    assert len(families) == len(set(families)) and {None, WINDOW} < set(families)


def test_a_source_without_a_key_runs_eagerly(model: Any) -> None:
    """The noise of a call inside another one has an offset, which the captured round does not know."""
    rejecting = Decoder(TransformersTarget(model), Drawing("dense"), Rejection(), k=4, shape="one", compile=True)
    outer = Round(PhiloxSource.seeded(1, 3), torch.zeros(3, dtype=torch.int64), [0] * 3)
    with pytest.warns(UserWarning, match="runs eagerly: OffsetSource has no fresh numbers that are functions of"):
        output = rejecting.generate(ragged(), 8, source=OffsetSource(outer))
    assert not output.report.compiled
    assert rejecting.generate(ragged(), 8).report.compiled, "other calls are captured"


def test_reports_promise_what_the_rule_promises(model: Any) -> None:
    decoder = Decoder(TransformersTarget(model), Drawing("dense"), Rejection(), k=4, shape="one", compile=True)
    report = decoder.generate(ragged(), 8).report
    assert report.compiled and report.width == 5 and set(report.sizes) == {5}
    assert "with plain in distribution, not in units" in str(report) and "to the bit" not in str(report)
    lossy = replace(report, exactness="synthetic")
    assert "none with plain" in str(lossy) and "to the bit" not in str(lossy)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["draft-model", "rsd"])
def test_compiled_rounds_draw_the_eager_loops_numbers(model: Any, inductor: None, method: str) -> None:
    """In float32, where the compiler's rounding reaches no draw of these texts; a call repeats itself in any case."""
    drafter, how = noisy(model, 0.3), {} if method == "rsd" else {"rule": "rejection"}
    eager, captured = both(model, lambda: decoder_for(model, method, k=3, drafter=drafter, compile=True, **how))
    for seed in range(3):
        lockstep(eager, captured, ragged(), 24, **{**OPTIONS, "seed": seed})


def test_a_call_whose_processors_forbid_drafts(model: Any) -> None:
    """The plain decoder in its place has no shape to keep: the rule promises nothing of one."""

    class Counting:
        """A processor that may keep state."""

        def __call__(self, ids: Any, scores: Any) -> Any:
            return scores

    with mmspec.enable(model, "prompt-lookup", rule="rejection", k=3, seed=1, compile=True) as spec:
        with pytest.warns(UserWarning, match="runs without drafts, because Counting may keep state"):
            model.generate(**ragged(), max_new_tokens=6, do_sample=True, logits_processor=[Counting()])
        assert spec.report is not None and spec.report.emitted == 18 and spec.report.width is None
