"""`return_dict_in_generate`: scores and logits of every emitted token are those of transformers."""

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.generation import GenerateDecoderOnlyOutput

import mmspec
from mmspec.api.generation import returned_cache
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step

ENDS = [17, 40, 41, 63, 77, 90, 91]
CALL = dict(max_new_tokens=20, eos_token_id=ENDS, pad_token_id=5)
ASKED = dict(return_dict_in_generate=True, output_scores=True, output_logits=True)
SAMPLINGS = {
    "greedy": dict(do_sample=False),
    "sampled": dict(do_sample=True, top_k=40, temperature=0.9),
    "penalties": dict(do_sample=True, top_k=0, repetition_penalty=1.3, no_repeat_ngram_size=2),
}


class Twig:
    """A drafter that knows the answer, and drafts wrong siblings on both sides of every right unit."""

    offers = frozenset({"tree", "chain"})
    needs: frozenset[str] = frozenset()

    def __init__(self, answer: Tensor) -> None:
        self.answer = torch.nn.functional.pad(answer, (0, 8))

    def bind(self, target: Target) -> None:
        pass

    def width(self, k: int) -> int:
        return 2 * k

    def start(self, state: State, inputs: Any) -> None:
        pass

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        right = torch.stack([row[n : n + k] for row, n in zip(self.answer, state.known, strict=True)])
        units, parents, above = [], [], -1
        for depth in range(k):
            order = (right[:, depth], right[:, depth] + 1) if depth % 2 else (right[:, depth] + 1, right[:, depth])
            units += [u % 131 for u in order]
            parents += [above, above]
            above = len(units) - 1 - depth % 2
        return Draft.tree(torch.stack(units, 1), parents)

    def observe(self, state: State, step: Step) -> None:
        pass


def both(model: Any, inputs: Any, spec: dict[str, Any], **call: Any) -> tuple[Any, Any, Any]:
    """The outputs of transformers and of mmspec, and the report."""
    torch.manual_seed(1)
    theirs = model.generate(**inputs, **call)
    with mmspec.enable(model, **spec) as enabled:
        torch.manual_seed(1)
        return theirs, model.generate(**inputs, **call), enabled.report


def lengths(sequences: Tensor, prompt: int) -> list[int]:
    return [next((i + 1 for i, t in enumerate(row) if t in ENDS), len(row)) for row in sequences[:, prompt:].tolist()]


def same_scores(mine: Any, theirs: Any, going: list[int]) -> None:
    """Scores are equal where a row goes on; after its end they give the padding token probability 1."""
    assert len(mine) == len(theirs)
    padding = torch.full_like(mine[0][0], -torch.inf).index_fill(0, torch.tensor(5), 0)
    for step, (ours, stocks) in enumerate(zip(mine, theirs, strict=True)):
        assert ours.shape == stocks.shape and ours.dtype == stocks.dtype == torch.float32
        for row, length in enumerate(going):
            if step < length:
                assert torch.equal(ours[row].isinf(), stocks[row].isinf())
                assert torch.allclose(ours[row], stocks[row], atol=1e-4), (step, row)
            else:
                assert torch.equal(ours[row], padding)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.compiled("history")
def test_scores_and_logits(target: Any, prompts: Callable, spec: dict[str, Any], sampling: str) -> None:
    theirs, mine, _ = both(target, prompts(3), spec, **CALL, **SAMPLINGS[sampling], **ASKED)
    assert isinstance(mine, GenerateDecoderOnlyOutput) and torch.equal(mine.sequences, theirs.sequences)
    going = lengths(mine.sequences, 14)
    assert len(set(going)) > 1
    same_scores(mine.scores, theirs.scores, going)
    same_scores(mine.logits, theirs.logits, going)


@pytest.mark.compiled
def test_scores_along_a_tree(target: Any, prompts: Callable) -> None:
    call = {**CALL, "do_sample": True, "top_k": 0}
    answer = both(target, prompts(3), {"method": "plain"}, **call)[0]
    theirs, mine, report = both(target, prompts(3), {"drafter": Twig(answer), "k": 4}, **call, **ASKED)
    assert report.acceptance_length > 2.5, "the test tests no tree"
    assert torch.equal(mine.sequences, theirs.sequences)
    same_scores(mine.scores, theirs.scores, lengths(mine.sequences, 14))


def test_only_what_is_asked_for_is_kept(target: Any, good: Any, prompts: Callable) -> None:
    spec = {"drafter": good, "k": 4}
    scores = both(target, prompts(1), spec, **CALL, return_dict_in_generate=True, output_scores=True)[1]
    assert scores.logits is None and len(scores.scores) == scores.sequences.shape[1] - 14
    logits = both(target, prompts(1), spec, **CALL, return_dict_in_generate=True, output_logits=True)[1]
    assert logits.scores is None and len(logits.logits) == logits.sequences.shape[1] - 14
    bare = both(target, prompts(1), spec, **CALL, return_dict_in_generate=True)[1]
    assert bare.scores is None and bare.logits is None
    theirs, ids, _ = both(target, prompts(1), spec, **CALL, output_scores=True)  # transformers returns ids then
    assert torch.equal(ids, theirs)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.compiled
def test_transition_scores(target: Any, good: Any, prompts: Callable, normalised: bool) -> None:
    """Padding adds nothing to the sum of transition scores."""
    call = dict(**CALL, do_sample=True, top_k=0, **ASKED)
    theirs, mine, _ = both(target, prompts(3), {"drafter": good, "k": 4}, **call)
    ours, stocks = (
        target.compute_transition_scores(out.sequences, out.scores, normalize_logits=normalised)
        for out in (mine, theirs)
    )
    going = torch.arange(ours.shape[1]) < torch.tensor(lengths(mine.sequences, 14))[:, None]
    assert torch.allclose(ours[going], stocks[going], atol=1e-4)
    assert not going.all() and (ours[~going] == 0).all()


@pytest.mark.compiled
def test_custom_generate_returns_the_dictionary_too(target: Any, prompts: Callable) -> None:
    decoding = mmspec.custom_generate("prompt-lookup")
    mine = target.generate(**prompts(3), **CALL, **ASKED, do_sample=False, custom_generate=decoding)
    theirs = target.generate(**prompts(3), **CALL, **ASKED, do_sample=False)
    assert torch.equal(mine.sequences, theirs.sequences)
    same_scores(mine.scores, theirs.scores, lengths(mine.sequences, 14))


def same_cache(mine: Any, theirs: Any, mask: Tensor) -> None:
    assert mine.get_seq_length() == theirs.get_seq_length()
    for ours, stocks in zip(mine.layers, theirs.layers, strict=True):
        kept = torch.nn.functional.pad(mask, (0, ours.keys.shape[2] - mask.shape[1]), value=1)[:, None, :, None]
        assert ((ours.keys - stocks.keys) * kept).abs().max() < 1e-4
        assert ((ours.values - stocks.values) * kept).abs().max() < 1e-4


@pytest.mark.compiled
def test_the_cache_comes_back(target: Any, prompts: Callable, spec: dict[str, Any]) -> None:
    call = dict(**CALL, do_sample=True, top_k=0, return_dict_in_generate=True)
    theirs, mine, _ = both(target, prompts(3), spec, **call)
    same_cache(mine.past_key_values, theirs.past_key_values, prompts(3)["attention_mask"])
    without = both(target, prompts(1), spec, **call, use_cache=False)
    assert without[0].past_key_values is None and without[1].past_key_values is None


def test_the_cache_of_rows_that_a_criterion_stopped(target: Any, good: Any, prompts: Callable) -> None:
    """Rows that are cut had run ahead of the others."""

    def stop(ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return ids[:, -1] % 4 == 0

    call = dict(max_new_tokens=20, eos_token_id=129, do_sample=True, top_k=0, return_dict_in_generate=True)
    theirs, mine, _ = both(target, prompts(3), {"drafter": good, "k": 6}, **call, stopping_criteria=[stop])
    assert mine.sequences.shape[1] < 34 and torch.equal(mine.sequences, theirs.sequences)
    same_cache(mine.past_key_values, theirs.past_key_values, prompts(3)["attention_mask"])


@pytest.mark.parametrize("method", ["plain", "prompt-lookup"])
def test_a_conversation_in_the_users_own_cache(target: Any, prompts: Callable, method: str) -> None:
    """Two turns, the second of which continues from the cache of the first; also where only ids are returned."""
    said = torch.tensor([[9, 30, 31]])
    texts = []
    for face in (contextlib.nullcontext, lambda: mmspec.enable(target, method)):
        cache, ids = DynamicCache(config=target.config), prompts(1)["input_ids"]
        with face():
            for _ in range(2):
                ids = torch.cat([ids, said], 1)
                ids = target.generate(ids, past_key_values=cache, max_new_tokens=12, do_sample=False)
                assert cache.get_seq_length() == ids.shape[1] - 1
        texts.append(ids)
    assert torch.equal(*texts)


@pytest.mark.parametrize("method", ["plain", "prompt-lookup"])
def test_a_prompt_of_embeddings(target: Any, prompts: Callable, method: str) -> None:
    inputs = {"inputs_embeds": target.get_input_embeddings()(prompts(1)["input_ids"]).detach()}
    theirs, mine, _ = both(target, inputs, {"method": method}, max_new_tokens=12, do_sample=True, top_k=0)
    assert torch.equal(mine, theirs) and mine.shape == (1, 12)


def test_a_target_that_cannot_tell_its_cache() -> None:
    assert returned_cache(SimpleNamespace(target=object()), SimpleNamespace(), torch.zeros(1, 3)) is None  # type: ignore[arg-type]
