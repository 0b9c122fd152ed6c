"""Captured rounds of rules that draw fresh numbers: every rule, and every kind of distribution that a draft has."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from mmspec.api.build import decoder_for
from mmspec.core.capture_pool import NAME
from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical, Mixed, PointMass
from mmspec.core.offset_noise import OffsetSource
from mmspec.core.philox import PhiloxSource
from mmspec.core.rules import Block, RecursiveRejection, Rejection, Rule, Synthetic
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import SIZES, noisy, random_model
from mmspec_image.drafters.jacobi import ImageJacobi, JacobiOptions
from mmspec_image.example import llamagen
from mmspec_image.rules.grouped import Grouped
from mmspec_image.rules.relaxed import Relaxed, RelaxedOptions
from tests.captured.conftest import lockstep

VOCAB = 61
RULES: dict[str, type[Rule]] = {
    "rejection": Rejection,
    "block": Block,
    "recursive-rejection": RecursiveRejection,
    "synthetic": Synthetic,
}
KINDS = ("none", "points", "dense", "sparse", "mixed", "mixed points")


class Drawing:
    """Drafts of a kind of distribution, near the target's after the root; shorter ones and none in some rounds.

    Args:
        target: The target, whose scores of the first prompt's units are the draft's.
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
        k = max(0, k - state.memory % 4)
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
    return random_model(
        LlamaConfig(**{**SIZES, "vocab_size": VOCAB, "hidden_size": 32, "num_attention_heads": 4}), gain=1.0
    )


def ragged() -> dict[str, Any]:
    """Three prompts, two of which are padded."""
    torch.manual_seed(1)
    ids = torch.randint(2, VOCAB, (3, 5)).repeat(1, 4)
    mask = torch.ones_like(ids)
    mask[1, :7], mask[2, :13] = 0, 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def both(model: Any, *how: Any, **options: Any) -> tuple[Decoder, Decoder]:
    """Two decoders of one width, of which the first runs the eager loop."""
    vars(model).pop(NAME, None)
    made = how[0] if callable(how[0]) else lambda: decoder_for(model, *how, **options)
    eager, captured = made(), made()
    eager.captures.compile = None
    return eager, captured


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_with_every_kind_of_draft(model: Any, rule: str, kind: str) -> None:
    target = TransformersTarget(model)
    eager, captured = both(model, lambda: Decoder(target, Drawing(kind), RULES[rule](), k=4, shape="one", compile=True))
    rounds = lockstep(eager, captured, ragged(), 24, seed=3, warp=Warp.sampling(0.9), ends=[7, 11])
    assert rounds > 6
    lockstep(eager, captured, ragged(), 17, seed=4, warp=Warp.sampling(0.9), ends=[7, 11])
    assert len(captured.captures.pool.rounds) == 1, "the second call is served by the first one's plan"
