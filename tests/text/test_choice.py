"""`auto` chooses, and says why; methods that draft with a model take any model, another tokenizer's too."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mmspec
from mmspec import shipped
from mmspec.api import plan
from mmspec.api.build import decoder_for
from mmspec.compare.equality import assert_same
from mmspec.core.decoder import Decoder
from mmspec.core.goodput import Goodput
from mmspec.core.payoff import Payoff
from mmspec.core.policies import Fixed
from mmspec.core.warp import Warp
from mmspec.hosts.budget import BudgetedTarget
from mmspec.hosts.loading import load_model
from mmspec.hosts.target import TransformersTarget
from mmspec.registry import installed
from mmspec_text.drafters.cascade import Cascade, CascadeOptions
from mmspec_text.drafters.draft_model import TextDraftTree
from mmspec_text.drafters.suffix import Suffix


def test_a_draft_model_decides(target: Any, good: Any) -> None:
    decoder = decoder_for(target, "auto", drafter=good)
    assert decoder.name == "draft-model" and decoder.why == "draft-model, because a draft model was given"


def test_without_anything_drafts_that_need_no_model_as_deep_as_they_pay(target: Any) -> None:
    decoder = decoder_for(target)
    assert isinstance(decoder.drafter, Suffix) and isinstance(decoder.policy, Payoff)
    assert (decoder.name, decoder.k) == ("suffix", 10) and "no draft model and no card" in decoder.why
    assert isinstance(decoder_for(target, policy="fixed").policy, Fixed) and decoder_for(target, k=3).k == 3


def test_a_tree_that_rounds_draft_themselves_where_nodes_are_cheap() -> None:
    elsewhere = SimpleNamespace(device=torch.device("cuda"), config=SimpleNamespace(_name_or_path=""))
    chosen = plan.choose(elsewhere, installed().get("target", "transformers"), draft_model=False, rule=False)
    assert (chosen.method, chosen.policy) == ("auto", None) and "recycled tokens" in chosen.why


def test_a_rule_of_the_users_own_gets_chains(target: Any) -> None:
    for rule in ("rejection", "block", "recursive-rejection"):
        decoder = decoder_for(target, rule=rule)
        assert decoder.name == "prompt-lookup" and "every rule takes its chains" in decoder.why


def test_the_card_of_a_shipped_model_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model("mmspec/text-1m")
    said = {"default_method": "draft-tree", "drafter": "mmspec/text-1m", "default_policy": "goodput", "k": 3}
    said |= {"options": {"nodes": 5}}
    monkeypatch.setattr(plan, "card_of", lambda name: said if name == "text-1m" else {})
    decoder = decoder_for(model)
    assert isinstance(decoder.drafter, TextDraftTree) and isinstance(decoder.policy, Goodput) and decoder.k == 3
    assert decoder.drafter.options.nodes == 5
    assert decoder.why == "draft-tree with mmspec/text-1m, because the card of mmspec/text-1m names it"
    monkeypatch.setattr(plan, "card_of", lambda name: {"default_method": "auto"})
    assert isinstance(decoder_for(model).drafter, Suffix)


def test_a_fetched_model_has_its_card(make_llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(
        plan, "card_of", lambda name: {"default_method": "token-recycling"} if name == "smollm2" else {}
    )
    for place, method in ((tmp_path / "smollm2", "token-recycling"), (tmp_path / "another", "suffix")):
        make_llama().save_pretrained(place)
        assert decoder_for(load_model(str(place))).name == method
    monkeypatch.setattr(shipped, "present", lambda: False)
    assert not plan.known_name(load_model(str(tmp_path / "smollm2")))


def test_the_shipped_cards_name_methods_that_work() -> None:
    for name in ("text-14m", "text-1m"):
        decoder = decoder_for(load_model(f"mmspec/{name}"))
        assert decoder.name == plan.card_of(name)["default_method"]


def test_a_drafter_given_by_name_or_as_an_object_is_taken_as_it_is(target: Any) -> None:
    class Last:
        def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
            return [[row[-1]] * k for row in tokens]

    assert decoder_for(target, drafter=Last()).name == "Last"
    assert type(decoder_for(target, drafter="suffix").drafter).__name__ == "Suffix"


@pytest.mark.parametrize("method", ["draft-model", "draft-tree", "rsd"])
def test_a_method_keeps_its_own_shape_when_a_model_is_given(target: Any, good: Any, method: str) -> None:
    drafter = decoder_for(target, method, drafter=good).drafter
    assert type(drafter).__name__ == ("TextDraftModel" if method == "draft-model" else "TextDraftTree")
    assert decoder_for(target, "prompt-lookup", drafter=good).drafter.offers >= {"chain", "q"}


def tokenizer(words: list[str]) -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0])),
        unk_token=words[0],
    )


@pytest.mark.parametrize("method", ["draft-model", "draft-tree"])
def test_a_draft_model_with_another_tokenizer(
    target: Any, make_llama: Callable, prompts: Callable, theirs: Callable, ours: Callable, method: str
) -> None:
    """Its weights are the target's in another order: mapped rightly, it knows what comes next."""
    words = [f"w{i}" for i in range(131)]
    order = torch.arange(131).roll(7)
    small = make_llama()
    small.model.embed_tokens.weight.data = target.model.embed_tokens.weight.data[order].clone()
    small.lm_head.weight.data = target.lm_head.weight.data[order].clone()
    names = {"tokenizer": tokenizer(words), "assistant_tokenizer": tokenizer([words[i] for i in order])}
    spec = {"method": method, "drafter": small, "k": 4, **names}
    call = dict(do_sample=True, top_k=0, max_new_tokens=20)
    mine = ours(target, prompts(3), 0, spec, **call)
    assert_same(mine.ids, theirs(target, prompts(3), 0, **call), mine.state)
    assert mine.report.acceptance_length > 3


def test_another_vocabulary_without_tokenizers_is_refused(target: Any, make_llama: Callable) -> None:
    with pytest.raises(ValueError, match=r"has 99 unit ids and the target 131: name the target's tokenizer"):
        mmspec.enable(target, "draft-model", drafter=make_llama(vocab_size=99))


@pytest.mark.parametrize("sample", [True, False])
def test_a_budget_that_covers_the_text_is_the_target_itself(target: Any, prompts: Callable, sample: bool) -> None:
    warp, runs = Warp(sample=sample), {}
    plain = Decoder(TransformersTarget(target)).generate(prompts(3), 30, warp=warp)
    for budget in (16, 128):
        drafter = Cascade(CascadeOptions(budget=budget, sinks=2))
        runs[budget] = Decoder(TransformersTarget(target), drafter, k=4).generate(prompts(3), 30, warp=warp)
        assert all(torch.equal(a, b) for a, b in zip(runs[budget].units, plain.units, strict=True))
        assert not runs[budget].report.faults
    assert runs[128].report.acceptance_rate == 1 > runs[16].report.acceptance_rate > 0


def test_a_budget_keeps_sinks_and_the_latest_at_their_positions(target: Any, prompts: Callable) -> None:
    adapter = TransformersTarget(target)
    whole = adapter.start(prompts(3), 4, 1).cache.slots
    few, _ = BudgetedTarget(adapter, budget=6, sinks=2)._cut_down(whole, 4)
    assert few.length.tolist() == [6, 5, 6] and few.shift.tolist() == [14 - 6, 0, 11 - 6]
    for ours, theirs in zip(few.layers, whole.layers, strict=True):
        for row, kept in enumerate(([0, 1, 10, 11, 12, 13], [0, 1, 2, 3, 4], [0, 1, 7, 8, 9, 10])):
            assert torch.equal(ours.keys[row, :, : len(kept)], theirs.keys[row][:, kept])
    with pytest.raises(ValueError, match="sinks must be at least 0 and fewer than the budget of 8 slots, got 8"):
        BudgetedTarget(adapter, budget=8, sinks=8)


@pytest.mark.parametrize("method", ["draft-model", "draft-tree"])
def test_a_draft_model_with_a_shorter_context_falls_silent(
    target: Any, make_llama: Callable, prompts: Callable, theirs: Callable, ours: Callable, method: str
) -> None:
    """From the beginning where the prompt is longer than it can read, else on its way."""
    call = dict(do_sample=True, top_k=0, max_new_tokens=20)
    for context, drafted in ((20, True), (4, False)):
        small = make_llama(max_position_embeddings=context)
        mine = ours(target, prompts(3), 0, {"method": method, "drafter": small, "k": 4}, **call)
        assert_same(mine.ids, theirs(target, prompts(3), 0, **call), mine.state)
        assert (mine.report.drafted > 0) == drafted and not mine.report.faults
