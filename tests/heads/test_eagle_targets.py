"""EAGLE heads for targets that are more than a plain decoder, and rounds of one shape; each text equals plain's."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import accelerate
import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama
from mmspec_ssm.target import RecurrentTarget
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from tests.heads.conftest import GREEDY, SAMPLED, checkpoint, features_of, written_out
from tests.support.examples import ssm

FORMS: list[dict[str, Any]] = [{"form": "chain"}, {"form": "rerank", "width": 3, "nodes": 8}]
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])


def head(form: dict[str, Any]) -> Eagle:
    return Eagle(EagleOptions(model=checkpoint("eagle-3"), probe=False, **form))


def same(make: Callable[[], Any], form: dict[str, Any], rows: dict[str, Tensor], warp: Any, **how: Any) -> Decoder:
    """Compare with plain decoding; what was accepted shows that something was compared."""
    plain = Decoder(make(), None, Match(), k=0).generate(rows, 40, seed=5, warp=warp)
    ours = Decoder(make(), head(form), Match(), k=3, **how)
    output = ours.generate(rows, 40, seed=5, warp=warp)
    assert all(torch.equal(a, b) for a, b in zip(output.units, plain.units, strict=True))
    assert output.report.accepted > 0
    return ours


@pytest.mark.thinned(1)
@forms
@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_hybrid_of_mamba_2_and_attention(form: dict[str, Any], warp: Any, rows: dict[str, Tensor]) -> None:
    """Its recurrent layers verify trees, too, and their states are features like any other's."""
    model = ssm.hybrid().target.model
    same(lambda: RecurrentTarget(model), form, rows, warp)


@forms
def test_a_target_with_an_adapter(form: dict[str, Any], rows: dict[str, Tensor]) -> None:
    """The features are the adapted model's; a merged adapter gives the same drafts."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    adapter = peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(copy.deepcopy(llama()), adapter).eval()
    ours = same(lambda: TransformersTarget(adapted), form, rows, GREEDY)
    drafted = ours.generate(rows, 12, seed=5, warp=GREEDY).report
    merged = copy.deepcopy(adapted).merge_and_unload()
    of_merged = Decoder(TransformersTarget(merged), head(form), Match(), k=3).generate(rows, 12, seed=5, warp=GREEDY)
    assert (drafted.drafted, drafted.accepted) == (of_merged.report.drafted, of_merged.report.accepted)


@pytest.mark.thinned(1)
@forms
@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_one_shape(form: dict[str, Any], warp: Any, rows: dict[str, Tensor]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(lambda: TransformersTarget(llama()), form, rows, warp, shape="one")


def test_the_hybrids_features_are_its_own(rows: dict[str, Tensor]) -> None:
    """A chain's first drafts, from the states that transformers itself records of every row by itself."""
    model = ssm.hybrid().target.model
    decoder = Decoder(RecurrentTarget(model), head({"form": "chain"}), Match(), k=3)
    state = decoder.start(rows, 8, seed=5, warp=GREEDY)
    reference = written_out(checkpoint("eagle-3"), model)
    propose, drafts = decoder.drafter.propose, []

    def watched(state: Any, k: int, noise: Any) -> Any:
        known = [state.history[b, int(state.pads[b]) : int(state.known[b])].clone() for b in range(state.rows)]
        drafts.append((known, propose(state, k, noise)))
        return drafts[-1][1]

    decoder.drafter.propose = watched  # type: ignore[method-assign]
    for _ in range(3):
        decoder.advance(state)
    for known, draft in drafts:
        for row, ids in enumerate(known):
            features = features_of(checkpoint("eagle-3"), ids[:-1], model)
            path = draft.units[row].tolist()
            logits = reference.draft_logits(features, ids[1:].tolist(), path[:-1])
            assert [int(each.argmax()) for each in logits] == path


def test_a_target_whose_weights_are_elsewhere_between_passes(rows: dict[str, Tensor]) -> None:
    """The head reads the target's embedding and output layers, which accelerate loads when they are called."""
    model = copy.deepcopy(llama())
    accelerate.cpu_offload(model, torch.device("cpu"))
    drafts = same(lambda: TransformersTarget(model), FORMS[0], rows, SAMPLED).generate(rows, 40, seed=5, warp=SAMPLED)
    here = same(lambda: TransformersTarget(llama()), FORMS[0], rows, SAMPLED).generate(rows, 40, seed=5, warp=SAMPLED)
    assert drafts.report.accepted == here.report.accepted
