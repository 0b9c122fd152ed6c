"""Unsupported arguments are refused before anything runs, and the message says what to use instead."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import (
    GenerationConfig,
    T5Config,
    T5ForConditionalGeneration,
    TextStreamer,
)

import mmspec
from mmspec.core import policies
from mmspec.core.rules.match import Match

NAMES = {
    "method": (dict(method="promt-lookup"), "no method is called 'promt-lookup'; did you mean 'prompt-lookup'"),
    "drafter": (dict(drafter="prompt-lokup"), "no drafter is called 'prompt-lokup'; did you mean 'prompt-lookup'"),
    "rule": (dict(rule="blok"), "no rule is called 'blok'; did you mean 'block'"),
    "policy": (dict(policy="confidense"), "no policy is called 'confidense'; did you mean 'confidence'"),
    "noise": (dict(noise="philoxx"), "no noise is called 'philoxx'; did you mean 'philox'"),
    "option": (dict(method="prompt-lookup", max_ngrm=2), "no option is called 'max_ngrm'; did you mean 'max_ngram'"),
    "option of another part": (dict(method="plain", max_ngram=2), "no option is called 'max_ngram'"),
    "option of no part": (dict(method="prompt-lookup", **{"drafte.max_ngram": 2}), "did you mean 'drafter'"),
}
VALUES = {
    "type": (
        dict(method="prompt-lookup", max_ngram="many"),
        "option 'max_ngram' is 'many', allowed is int >= 1, <= 32",
    ),
    "fraction": (dict(method="prompt-lookup", max_ngram=2.5), "'max_ngram' is 2.5, allowed is int"),
    "too large": (dict(method="prompt-lookup", max_ngram=33), "'max_ngram' is 33, allowed is int >= 1, <= 32"),
    "too small": (dict(method="prompt-lookup", min_ngram=0), "'min_ngram' is 0, allowed is int >= 1"),
    "together": (dict(method="prompt-lookup", min_ngram=5), r"min_ngram \(5\) must not exceed max_ngram \(3\)"),
    "threshold": (
        dict(method="prompt-lookup", policy="confidence", threshold=1.0),
        "'threshold' is 1.0, allowed is float > 0, < 1",
    ),
    "negative k": (dict(k=-1), "k must be an integer >= 0, got -1"),
    "k of a wrong type": (dict(k="three"), "k must be an integer >= 0, got 'three'"),
    "k twice": (dict(k=3, num_speculative_tokens=3), "k and num_speculative_tokens are one number"),
    "option twice": (
        dict(method="prompt-lookup", max_ngram=3, **{"drafter.max_ngram": 3}),
        "'max_ngram' is given twice, as max_ngram= and as drafter.max_ngram=",
    ),
    "no draft model": (dict(method="draft-model"), "needs a smaller model"),
    "a drafter for plain": (dict(method="plain", drafter="prompt-lookup"), "'plain' drafts nothing"),
    "torch noise": (dict(rule="rejection", noise="torch"), "noise='torch' needs the rule 'match', got Rejection"),
    "seed of torch noise": (dict(noise="torch", seed=3), "torch.manual_seed decides"),
}


@pytest.mark.parametrize("case", [*NAMES, *VALUES])
def test_names_and_values(target: Any, case: str) -> None:
    arguments, says = (NAMES | VALUES)[case]
    with pytest.raises(ValueError, match=says):
        mmspec.enable(target, **arguments)


def test_custom_generate_refuses_the_same(target: Any, prompts: Callable) -> None:
    for arguments, says in (NAMES["method"], VALUES["type"], VALUES["torch noise"]):
        with pytest.raises(ValueError, match=says):
            target.generate(**prompts(1), max_new_tokens=3, custom_generate=mmspec.custom_generate(**arguments))


def test_an_option_of_two_parts_must_say_whose_it_is(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Clashing(policies.ConfidenceOptions):
        max_ngram: int = 0

    def clashing(k: int, options: Clashing) -> policies.Confidence:
        return policies.Confidence(k, options.threshold)

    monkeypatch.setattr(policies, "confidence", clashing)
    arguments = dict(method="prompt-lookup", policy="confidence")
    with pytest.raises(
        ValueError, match=r"belongs to drafter and policy; write drafter.max_ngram= or policy.max_ngram="
    ):
        mmspec.enable(target, **arguments, max_ngram=7)
    with mmspec.enable(target, **arguments, **{"drafter.max_ngram": 7}) as spec:
        assert spec._decoder.drafter.options.max_ngram == 7


def test_a_drafter_must_be_one_and_be_given_once(target: Any, good: Any) -> None:
    with pytest.raises(TypeError, match="a name, a model or an object with `propose`, not int"):
        mmspec.enable(target, drafter=5)
    for name in ("model", "drafter.model"):
        with pytest.raises(ValueError, match="the draft model is given twice"):
            mmspec.enable(target, drafter=good, **{name: good})
    with mmspec.enable(target, "draft-model", model=good) as spec:
        assert spec._decoder.drafter.model.model is good


def test_a_drafter_of_another_vocabulary(target: Any, make_llama: Callable) -> None:
    with pytest.raises(ValueError, match=r"has 130 unit ids and the target 131: name the target's tokenizer"):
        mmspec.enable(target, drafter=make_llama(vocab_size=130))


def test_what_is_no_decoder_is_refused_with_the_reason(target: Any) -> None:
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=131, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2))
    with pytest.raises(ValueError, match="'t5' is an encoder–decoder; only decoders"):
        mmspec.enable(t5, "plain")
    with pytest.raises(ValueError, match="'t5' is an encoder–decoder; only decoders"):
        mmspec.enable(target, drafter=t5)
    with pytest.raises(ValueError, match=r"no installed plugin has a target for 'int'\. There is .*transformers: "):
        mmspec.enable(3)


CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "beams": (dict(num_beams=3), "num_beams=3: beam search is not speculative"),
    "constrained beams": (dict(force_words_ids=[[5]], num_beams=2), "num_beams=2"),
    "forced words": (dict(force_words_ids=[[5]]), "force_words_ids=.* mmspec has no constrained beams"),
    "contrastive search": (dict(penalty_alpha=0.6, top_k=4), "penalty_alpha=0.6 .* has no contrastive search"),
    "DoLa": (dict(dola_layers="high"), "dola_layers='high' .* has no DoLa"),
    "attentions": (dict(output_attentions=True), "output_attentions=True .* keeps no attentions"),
    "hidden states": (
        dict(output_hidden_states=True, return_dict_in_generate=True),
        "output_hidden_states=True .* keeps no hidden states",
    ),
    "lookup of transformers": (
        dict(prompt_lookup_num_tokens=3),
        "prompt_lookup_num_tokens=3 .* use the method prompt-",
    ),
    "DFlash of transformers": (dict(speculation_type="dflash"), "speculation_type='dflash' .* name a method"),
    "a lossy ensemble": (dict(assistant_ensemble_weight=0.5), "assistant_ensemble_weight=0.5 .* target's distribution"),
    "early exit": (dict(assistant_early_exit=1), "assistant_early_exit=1 .* is the speculation itself"),
    "heads of the model": (dict(use_mtp=True), "use_mtp=True"),
    "token healing": (dict(token_healing=True), "token_healing=True"),
    "quantized cache": (dict(cache_implementation="quantized"), "cache_implementation='quantized' .* its own cache"),
    "offloaded cache": (dict(cache_implementation="offloaded"), "cache_implementation='offloaded'"),
    "offloaded static cache": (
        dict(cache_implementation="offloaded_static"),
        "cache_implementation='offloaded_static'",
    ),
    "paged cache": (dict(cache_implementation="paged"), "cache_implementation='paged'"),
}
ENABLED_ONLY: dict[str, tuple[dict[str, Any], str]] = {
    "stop strings": (dict(stop_strings=["a"]), "stop_strings= needs the model's tokenizer="),
    "another decoding": (dict(custom_generate=lambda *args, **kwargs: None), "custom_generate= cannot be combined"),
    "synchronised devices": (
        dict(synced_gpus=True),
        "synced_gpus= cannot be combined with mmspec.enable; call disable",
    ),
}


@pytest.fixture
def passes(target: Any) -> Iterator[list[int]]:
    """Lengths of all passes of the model, recorded."""
    seen: list[int] = []
    hook = target.register_forward_pre_hook(lambda module, args, kwargs: seen.append(1), with_kwargs=True)
    yield seen
    hook.remove()


@pytest.mark.parametrize("case", [*CALLS, *ENABLED_ONLY])
def test_arguments_of_generate(target: Any, prompts: Callable, passes: list[int], case: str) -> None:
    """Refusals come before any pass of the model."""
    arguments, says = (CALLS | ENABLED_ONLY)[case]
    with mmspec.enable(target, "prompt-lookup"):
        passes.clear()  # the self-check of an architecture runs once
        with pytest.raises(ValueError, match=says):
            target.generate(**prompts(1), max_new_tokens=5, **arguments)
        assert not passes


@pytest.mark.parametrize("case", sorted(set(CALLS) - {"quantized cache", "paged cache"}))
def test_arguments_of_generate_with_our_function(target: Any, prompts: Callable, passes: list[int], case: str) -> None:
    """transformers fails without a quantized cache's package, and calls no custom function with a paged one."""
    arguments, says = CALLS[case]
    if case == "token healing":
        says = "tokenizer"  # transformers heals tokens before it calls custom functions, and needs a tokenizer for that
    decoding = mmspec.custom_generate("plain")
    with pytest.raises(ValueError, match=says):
        target.generate(**prompts(1), max_new_tokens=5, custom_generate=decoding, **arguments)
    assert not passes


@pytest.mark.parametrize("case", ["beams", "contrastive search", "offloaded cache", "attentions"])
def test_settings_of_a_configuration(target: Any, prompts: Callable, case: str) -> None:
    arguments, says = CALLS[case]
    config = GenerationConfig(max_new_tokens=5, pad_token_id=0, **arguments)
    with mmspec.enable(target, "plain"), pytest.raises(ValueError, match=says):
        target.generate(**prompts(1), generation_config=config)


def test_assistants_as_arguments(target: Any, good: Any, prompts: Callable) -> None:
    inputs = prompts(1)
    with mmspec.enable(target, "plain"):
        with pytest.raises(ValueError, match="assistant_model= cannot be combined"):
            target.generate(**inputs, assistant_model=good, max_new_tokens=5)
        # Values that request nothing are not refused.
        ids = target.generate(**inputs, max_new_tokens=5, synced_gpus=False, assistant_model=None, do_sample=False)
    assert torch.equal(ids, target.generate(**inputs, max_new_tokens=5, do_sample=False))


def test_a_refused_call_draws_nothing_and_the_next_one_works(target: Any, prompts: Callable) -> None:
    state = torch.get_rng_state()
    with mmspec.enable(target, "plain"):
        with pytest.raises(ValueError):
            target.generate(**prompts(1), max_new_tokens=5, do_sample=True, num_beams=2)
        with pytest.raises(ValueError):
            target.generate(**prompts(3), max_new_tokens=5, do_sample=True, streamer=TextStreamer(None))
        assert torch.equal(torch.get_rng_state(), state)
        assert target.generate(**prompts(3), max_new_tokens=5, do_sample=True).shape == (3, 19)


def test_an_object_as_rule(target: Any, prompts: Callable, theirs: Callable, ours: Callable) -> None:
    call = dict(do_sample=True, top_k=0, max_new_tokens=8)
    mine = ours(target, prompts(1), 0, {"method": "prompt-lookup", "rule": Match()}, **call)
    assert torch.equal(mine.ids, theirs(target, prompts(1), 0, **call).ids)


@pytest.mark.parametrize("place", ["argument", "configuration", "model", "one call"])
def test_settings_of_transformers_assistants_are_named(
    target: Any, prompts: Callable, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning with all of them, wherever they stand; k= says how much is drafted."""
    call, said = dict(max_new_tokens=8, do_sample=False), dict(num_assistant_tokens=7, assistant_lookbehind=3)
    plain = target.generate(**prompts(1), **call)
    more: dict[str, Any] = {"argument": said, "configuration": {}, "model": {}, "one call": said}[place]
    if place == "configuration":
        call = {"generation_config": GenerationConfig(**call, **said)}
    if place == "model":
        for name, value in said.items():
            monkeypatch.setattr(target.generation_config, name, value)
    match = "num_assistant_tokens=7, assistant_lookbehind=3 have no effect under mmspec.*k="
    with pytest.warns(UserWarning, match=match) as warned:
        if place == "one call":
            how = mmspec.custom_generate("prompt-lookup", k=4)
            ids = target.generate(**prompts(1), **call, **more, custom_generate=how)
        else:
            with mmspec.enable(target, "prompt-lookup", k=4) as spec:
                ids = target.generate(**prompts(1), **call, **more)
            assert spec.report.drafted <= 4 * spec.report.rounds
    assert torch.equal(ids, plain) and sum("no effect" in str(one.message) for one in warned) == 1


def test_a_call_without_such_settings_is_quiet(target: Any, prompts: Callable, recwarn: Any) -> None:
    with mmspec.enable(target, "prompt-lookup"):
        target.generate(**prompts(1), max_new_tokens=4, do_sample=False, num_assistant_tokens=20)
    assert not [one for one in recwarn if "no effect" in str(one.message)], "20 is transformers' default"


def test_a_draft_models_own_number_of_tokens_is_k(target: Any, make_llama: Callable) -> None:
    """As transformers' assisted generation reads it, of a live draft model; `k` wins."""
    small = make_llama()
    small.generation_config.num_assistant_tokens = 3
    with mmspec.enable(target, drafter=small) as spec:
        assert spec._decoder.k == 3
    with mmspec.enable(target, drafter=small, k=6) as spec:
        assert spec._decoder.k == 6
    small.generation_config.num_assistant_tokens_schedule = "heuristic"
    with pytest.warns(UserWarning, match="^num_assistant_tokens_schedule='heuristic' has no effect"):
        mmspec.enable(target, drafter=small).disable()
