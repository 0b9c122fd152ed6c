"""`candidates`: transformers' generators as drafters; what they give, and unmodified transformers' text."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.generation.candidate_generator import CandidateGenerator, PromptLookupCandidateGenerator

import mmspec
from mmspec.compare.equality import assert_same
from mmspec.core.decoder import Decoder
from mmspec.hosts.target import TransformersTarget
from mmspec_text.drafters.candidates import (
    Candidates,
    CandidatesOptions,
    TextCandidates,
    assistant,
    cross_tokenizer,
    known_text,
    prompt_lookup,
)

ENDS = [17, 40, 41, 63, 77, 90, 91, 92, 101, 120]
VOCAB = 131
GREEDY = dict(do_sample=False, max_new_tokens=40)


def letters(order: Tensor) -> PreTrainedTokenizerFast:
    """A tokenizer with one id for each of 131 letters, numbered by `order`."""
    vocab = {chr(0x4E00 + letter): int(place) for letter, place in enumerate(order)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.fixture(scope="module")
def other(target: Any) -> tuple[Any, Any, Any]:
    """The target's weights under other ids, sampling if it is let; the target's tokenizer, and its own."""
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(0))
    model = copy.deepcopy(target)
    model.model.embed_tokens.weight.data[order] = target.model.embed_tokens.weight.data
    model.lm_head.weight.data[order] = target.lm_head.weight.data
    model.generation_config.do_sample = True
    return model, letters(torch.arange(VOCAB)), letters(order)


@pytest.fixture(params=["prompt-lookup", "assistant", "bad assistant", "cross-tokenizer"])
def make(request: pytest.FixtureRequest, good: Any, bad: Any, other: Any) -> Callable:
    return {
        "prompt-lookup": prompt_lookup(),
        "assistant": assistant(good),
        "bad assistant": assistant(bad),
        "cross-tokenizer": cross_tokenizer(*other),
    }[request.param]


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "call",
    [
        GREEDY,
        dict(do_sample=False, max_new_tokens=20, repetition_penalty=1.3, eos_token_id=ENDS),
        dict(do_sample=True, max_new_tokens=20, top_k=0, temperature=0.8, eos_token_id=ENDS),
    ],
)
@pytest.mark.compiled("history")
def test_equals_unmodified_transformers(
    target: Any, prompts: Callable, theirs: Callable, ours: Callable, make: Callable, call: dict[str, Any]
) -> None:
    for seed in (0, 1):
        mine = ours(target, prompts(1, seed), seed, {"drafter": Candidates(make), "k": 4}, **call)
        assert_same(mine.ids, theirs(target, prompts(1, seed), seed, **call), mine.state)
        assert mine.report.faults == 0


def test_the_generators_are_of_use(target: Any, prompts: Callable, ours: Callable, good: Any, other: Any) -> None:
    lengths = {}
    for name, made in (("same", assistant(good)), ("other ids", cross_tokenizer(*other))):
        lengths[name] = ours(target, prompts(1), 0, {"drafter": Candidates(made), "k": 4}, **GREEDY).report
    assert lengths["same"].acceptance_length > 1.8 and lengths["other ids"].acceptance_length > 2, lengths
    lookup = ours(target, prompts(1), 0, {"drafter": Candidates(prompt_lookup())}, do_sample=False, max_new_tokens=150)
    assert lookup.report.accepted > 10


def padded(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same row with four pads before it."""
    return {name: torch.nn.functional.pad(ids, (4, 0)) for name, ids in inputs.items()}


def test_drafts_are_what_the_generator_gives_and_the_generator_of_torch_stays(
    target: Any, prompts: Callable, make: Callable
) -> None:
    decoder = Decoder(TransformersTarget(target), Candidates(make), k=4)
    state = decoder.start(padded(prompts(1)), 30)
    own, drafted = make(state, None), 0
    for name in ("num_assistant_tokens", "num_output_tokens"):
        if hasattr(own, name):
            setattr(own, name, 4)
    while not state.finished:
        text = known_text(state)
        assert text[0, :14].tolist() == prompts(1)["input_ids"][0].tolist()
        with torch.random.fork_rng():
            expected = own.get_candidates(text)[0][0, text.shape[1] :].tolist()
        before = torch.get_rng_state()
        pending = decoder.speculate(state)
        assert torch.equal(before, torch.get_rng_state())
        room = 30 - state.host.emitted[0] - 1
        assert pending.draft.units[0][pending.draft.valid[0]].tolist()[1:] == expected[: min(4, room)]
        drafted += len(expected)
        decoder.settle(state, pending)
        state.sync()
    assert drafted > 3


class Recorder(CandidateGenerator):
    """Proposes fixed ids; remembers how it was told of the outcome."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = torch.tensor([ids])
        self.told: list[tuple[Tensor, Tensor, int]] = []

    def get_candidates(self, input_ids: Tensor, **kwargs: Any) -> tuple[Tensor, None]:
        torch.rand(3)
        return torch.cat([input_ids, self.ids], 1), None

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        self.told.append((input_ids.clone(), scores, num_matches))


def test_the_outcome_is_told_as_in_transformers(target: Any, prompts: Callable) -> None:
    plain = Decoder(TransformersTarget(target)).generate(prompts(1), 12).units[0].tolist()
    recorder = Recorder([plain[1], plain[2], 5 if plain[3] != 5 else 6])
    decoder = Decoder(TransformersTarget(target), Candidates(lambda state, inputs: recorder), k=9)
    state = decoder.start(prompts(1), 12)
    before = torch.get_rng_state()
    decoder.advance(state)
    assert torch.equal(before, torch.get_rng_state())  # whatever a generator draws
    text, scores, matched = recorder.told[0]
    assert matched == 2 and scores.shape == (1, 4, VOCAB)
    assert text[0].tolist() == prompts(1)["input_ids"][0].tolist() + plain[:4] and torch.equal(text, known_text(state))


def test_ids_that_the_target_does_not_have_end_a_draft(target: Any, prompts: Callable) -> None:
    decoder = Decoder(TransformersTarget(target), Candidates(lambda state, inputs: Recorder([3, VOCAB, 4])), k=5)
    state = decoder.start(prompts(1), 12)
    draft = decoder.speculate(state).draft
    assert draft.units[0][draft.valid[0]].tolist()[1:] == [3]


def test_a_generator_that_missed_a_round_is_made_anew(target: Any, prompts: Callable, good: Any) -> None:
    made = []

    def counted(state: Any, inputs: Any) -> CandidateGenerator:
        made.append(state.host.emitted[0])
        return assistant(good)(state, inputs)

    turns = iter([4, 4, 0, 0, 0, 4] + [4] * 40)
    policy = SimpleNamespace(budget=lambda: next(turns), trim=lambda draft: draft, observe=lambda *args: None)
    decoder = Decoder(TransformersTarget(target), Candidates(counted), k=4, policy=policy)
    output = decoder.generate(prompts(1), 30, seed=1)
    plain = Decoder(TransformersTarget(target)).generate(prompts(1), 30, seed=1)
    assert torch.equal(output.units[0], plain.units[0])
    assert len(made) == 2 and made[0] == 1 and made[1] >= 4


def test_several_rows_and_readers_of_the_target_are_refused(target: Any, prompts: Callable) -> None:
    with (
        mmspec.enable(target, drafter=Candidates(prompt_lookup())),
        pytest.raises(ValueError, match="take one row at a time, got 3"),
    ):
        target.generate(**prompts(3), **GREEDY)

    class Reader(Recorder):
        requires_model_outputs = True

    decoder = Decoder(TransformersTarget(target), Candidates(lambda state, inputs: Reader([1])))
    with pytest.raises(ValueError, match="Reader reads the target's own outputs"):
        decoder.start(prompts(1), 5)


def test_options(target: Any, prompts: Callable, good: Any, other: Any, make_llama: Callable) -> None:
    model, tokenizer, own = other
    for options in (
        CandidatesOptions(),
        CandidatesOptions(kind="assistant", model=good),
        CandidatesOptions(kind="cross-tokenizer", model=model, tokenizer=tokenizer, assistant_tokenizer=own),
    ):
        decoder = Decoder(TransformersTarget(target), TextCandidates(options), k=4)
        state = decoder.start(prompts(1), 20)
        names = {"prompt-lookup": "PromptLookup", "assistant": "Assisted", "cross-tokenizer": "DifferentTokenizers"}
        assert names[options.kind] in type(state.memory.generator).__name__
    named = TextCandidates(CandidatesOptions(kind="cross-tokenizer", model="mmspec/text-1m", tokenizer=tokenizer))
    Decoder(TransformersTarget(target), named, k=2).start(prompts(1), 5)
    small = make_llama(vocab_size=VOCAB - 1, num_hidden_layers=1)
    with pytest.raises(ValueError, match="the assistant has 130 token ids and the target 131"):
        Decoder(TransformersTarget(target), TextCandidates(CandidatesOptions(kind="assistant", model=small)))
    for wrong, why in (
        (dict(kind="assistant"), "'assistant' needs an assistant"),
        (dict(kind="cross-tokenizer", model="x"), "needs tokenizer="),
        (dict(kind="cross-tokenizer", model=model, tokenizer=tokenizer), "needs assistant_tokenizer="),
    ):
        with pytest.raises(ValueError, match=why):
            CandidatesOptions(**wrong)


def test_prompt_lookup_stops_before_an_end(target: Any, prompts: Callable) -> None:
    decoder = Decoder(TransformersTarget(target), Candidates(prompt_lookup(3)))
    state = decoder.start(prompts(1), 20, ends=[7, 9])
    made = state.memory.generator
    assert isinstance(made, PromptLookupCandidateGenerator) and made.max_matching_ngram_size == 3
    assert made.eos_token_id.tolist() == [7, 9] and made.max_length == 34
