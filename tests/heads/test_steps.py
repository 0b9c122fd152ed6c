"""What a step of a head costs on a CPU: few operations, over the ids that it scores alone, with packed weights.

Drafts are those of logits over all ids, and of weights that are not packed.
"""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match, Rejection
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.hosts import linear
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from mmspec_text.drafters.heads.layers import HeadNetwork
from tests.heads.conftest import SAMPLED, checkpoint

FORMS: dict[str, dict[str, Any]] = {
    "chain": {"form": "chain"},
    "tree": {"form": "rerank", "width": 3, "nodes": 8},
    "heap": {"form": "heap", "width": 3, "nodes": 8},
    "beam": {"form": "beam", "width": 3},
}


@cache
def half() -> Any:
    return copy.deepcopy(llama()).bfloat16()


def eagle(model: Any, rule: Any = Match, **options: Any) -> Decoder:
    drafter = Eagle(EagleOptions(model=checkpoint("eagle-3"), probe=False, corpus=[1, 3, 3, 5, 2], keep=5, **options))
    return Decoder(TransformersTarget(model), drafter, rule(), k=3)


def drafts(decoder: Decoder, warp: Warp, rounds: int = 6) -> list[Draft]:
    """The drafts of some rounds of one row."""
    state = decoder.start({"input_ids": torch.tensor([[2, 3, 4, 3, 5]])}, 60, seed=3, warp=warp)
    propose, made = decoder.drafter.propose, list[Draft]()
    decoder.drafter.propose = lambda *given: made.append(propose(*given)) or made[-1]  # type: ignore[method-assign]
    for _ in range(rounds):
        decoder.advance(state)
    return made


@pytest.mark.parametrize("warp", [Warp.sampling(0), SAMPLED, Warp.sampling(0.7, top_k=3, top_p=0.9)])
@pytest.mark.parametrize("form", FORMS)
def test_drafts_over_some_ids_are_those_over_all(form: str, warp: Warp, monkeypatch: pytest.MonkeyPatch) -> None:
    some = drafts(eagle(llama(), **FORMS[form]), warp)
    monkeypatch.setattr(HeadNetwork, "part", lambda self: None)
    whole = drafts(eagle(llama(), **FORMS[form]), warp)
    for one, other in zip(some, whole, strict=True):
        assert one.score is not None and other.score is not None
        valid = one.valid
        assert torch.equal(one.units[valid], other.units[valid]) and torch.equal(valid, other.valid)
        assert form == "beam" or torch.equal(one.index.parent, other.index.parent)
        torch.testing.assert_close(one.score[valid], other.score[valid])


def test_a_rule_reads_distributions_over_all_ids() -> None:
    """Those that units were drawn from, whatever the head scores."""
    (made, *_) = drafts(eagle(llama(), Rejection, form="chain"), SAMPLED, 1)
    distribution: Any = made.distribution
    assert distribution.ids is None and distribution.probs.shape[-1] == 7
    assert int((distribution.probs > 0).sum(-1).max()) == 5


@pytest.mark.parametrize("form", ["chain", "tree"])
def test_packed_weights_draft_the_same(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16, to the bit; in float32, where oneDNN rounds otherwise, heads have none."""
    monkeypatch.setattr(linear, "SMALLEST", 1)
    packed = list[list[Draft]]()
    for forced in ("torch", "packed"):
        monkeypatch.setenv("MMSPEC_PRODUCTS", forced)
        packed.append(drafts(eagle(half(), **FORMS[form]), SAMPLED))
    for one, other in zip(*packed, strict=True):
        assert torch.equal(one.units, other.units)
    for model in (half(), llama()):
        bound = eagle(model, **FORMS[form])
        drafts(bound, SAMPLED, 2)
        network = bound.drafter.network  # type: ignore[attr-defined]
        assert (linear.laid_out(network) > 0) is (model is half() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Operations(TorchDispatchMode):
    """Counts operations that are no views."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += not func.is_view
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("form", "most"), [("chain", 110), ("tree", 150)])
def test_a_step_has_few_operations(form: str, most: int) -> None:
    """A further level of a draft, greedy: the head's pass, its scores, the choice of units, and the growth."""
    counts = list[int]()
    for k in (2, 4):
        decoder = eagle(half(), **FORMS[form])
        decoder.k = k
        state = decoder.start({"input_ids": torch.tensor([[2, 3, 4, 3, 5]])}, 60, seed=3, warp=Warp.sampling(0))
        noise = decoder.rule.draft_noise(state.round())
        with Operations() as operations:
            decoder.drafter.propose(state, k, noise)
        counts.append(operations.number)
    assert (counts[1] - counts[0]) / 2 <= most
