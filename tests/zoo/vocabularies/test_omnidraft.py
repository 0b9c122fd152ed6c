"""omnidraft: two rounds by hand, the n-gram cache, what the small model's cache holds, and the text."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig

import mmspec
from mmspec.compare.equality import assert_same, stock
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.rules import Rejection
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.translated import TranslatedTarget
from mmspec.hosts.vocabulary import VocabularyMap
from mmspec.testing import tiny_models
from mmspec.testing.statistics import joint_p_value
from mmspec.testing.toys.history import HistoryTarget
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_zoo.vocabularies.lesson import TwoVocabularies
from mmspec_zoo.vocabularies.omnidraft import Joined, NgramCache, OmniDraft, OmniDraftOptions, drawn_from
from mmspec_zoo.vocabularies.stop_head import stop_head
from tests.support import random_models
from tests.support.cycle import Cycle
from tests.support.examples.zoo import letters
from tests.support.zoo import VOCAB, build

FAST = ["llama", "gpt2"]
SLOW = ["falcon-new", "mistral", "gemma2", "qwen3_moe"]
NAMES = [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
A, B, C, AB = range(4)
PIECES = ([A], [B], [C], [A, B])


def table(pieces: Any, direct: list[int], size: int) -> VocabularyMap:
    longest = max(map(len, pieces))
    spelling = torch.tensor([[*each, *[-1] * (longest - len(each))] for each in pieces])
    return VocabularyMap(torch.tensor(direct), spelling, torch.tensor([len(each) for each in pieces]), size)


class Markov(MarkovTarget):
    """Takes prompts as transformers' targets do; `after` says what follows two units, nearly surely."""

    @classmethod
    def surely(cls, vocab: int, after: dict[tuple[int, int], int | tuple[int, ...]]) -> "Markov":
        scores = torch.zeros(vocab, vocab, vocab)
        for (before, at), following in after.items():
            scores[before, at, torch.tensor(following)] = 25.0
        return cls(scores)

    def start(self, inputs: Any, limit: int, width: int) -> Any:
        return super().start(inputs["input_ids"], limit, width)


class Guessing(Markov):
    """Says of a piece behind each unit how likely it is accepted."""

    chances = torch.tensor([0.9, 0.6, 0.8])

    def verify(self, cache: Any, draft: Any, first: int = 0) -> Any:
        output = super().verify(cache, draft, first)
        return replace(output, auxiliary=self.chances[draft.units[:, first:]])


class History(HistoryTarget):
    """Takes prompts as transformers' targets do."""

    def start(self, inputs: Any, limit: int, width: int) -> Any:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        return super().start((ids, (mask == 0).sum(1)), limit, width)


def omnidraft(small: Any, vocabulary: VocabularyMap, **options: Any) -> OmniDraft:
    """The drafter over a toy."""
    drafter = OmniDraft(OmniDraftOptions(model=random_models.small(), **options))

    def bind(target: Any) -> None:
        drafter.model = TranslatedTarget(small, vocabulary)
        DraftModel.bind(drafter, target)
        drafter.ngrams = NgramCache(vocabulary, drafter.options.capacity, drafter.options.ngram)

    drafter.bind = bind  # type: ignore[method-assign]
    return drafter


TARGET = Markov.surely(4, {(A, C): C, (C, C): AB, (C, AB): C, (AB, C): AB})
SPELLER = Markov.surely(3, {(A, C): C, (C, C): A, (C, A): B, (A, B): C, (B, C): A})
TABLE = table(PIECES, [A, B, C, -1], 3)


def test_two_rounds_by_hand() -> None:
    """The target writes "c", "ab", "c", "ab", …; the small model has no "ab", and writes c, a, b, c, a, b, ….

    The prompt is a, c, and c is emitted. Round 1: the small model drafts a, b, c, a, and the cache is empty: so these
    are the units. The target writes "ab": nothing is accepted, and the n-gram (a, b) is learned.
    Round 2, behind "ab": it drafts c, a, b, c. Behind b, the pieces end with (a, b), which becomes "ab": the units are
    c, "ab", c, and all are accepted. Of the four pieces, c, a, b were fed: the small model's cache has the root, c and
    "ab", and lacks the last c. Round 3, behind "ab", drafts the same again.
    """
    decoder = Decoder(TARGET, drafter := omnidraft(SPELLER, TABLE), k=4)
    prompt = {"input_ids": torch.tensor([[A, C]]), "attention_mask": torch.ones(1, 2)}
    state = decoder.start(prompt, 20, warp=Warp.sampling(temperature=0))
    drafts, entries, accepted, seen = [], [dict(drafter.ngrams.entries)], [], []
    for _ in range(3):
        decoder.advance(state)
        draft = state.step.draft
        drafts.append(draft.units[0][draft.valid[0]].tolist())
        entries.append(dict(drafter.ngrams.entries))
        accepted.append(int(state.step.verdict.length))
        seen.append(int(state.memory.seen))
    assert drafts == [[C, A, B, C, A], [AB, C, AB, C], [AB, C, AB, C]]  # each behind its root
    assert entries == [{}, {(A, B): AB}, {(A, B): AB}, {(A, B): AB}]
    assert accepted == [0, 3, 3]
    # Emitted before a round's root are 0, 1 and 5 units; the cache has the root, and what was accepted and fed.
    assert seen == [1, 1 + 3, 1 + 3 + 4]
    assert state.output()[0].tolist() == [C, AB, C, AB, C, AB, C, AB, C, AB]


def test_the_cache_by_hand() -> None:
    """Keys are spellings; the target's own output fills it; the oldest are dropped; what cannot be drafted is not kept.

    The target's ids 4 … 8 are spelled (0, 1), (1, 0, 2), (0, 1, 2), (3, 1) and in five pieces. It has no token of the
    draft id 3 alone, and keys have at most four pieces, so that 7 and 8 are never kept; nor is 2, which the small model
    has.
    """
    pieces = ([0], [1], [2], [4], [0, 1], [1, 0, 2], [0, 1, 2], [3, 1], [0, 0, 0, 0, 0])
    cache = NgramCache(table(pieces, [0, 1, 2, 4, -1, -1, -1, -1, -1], 5), capacity=2, longest=4)
    assert cache.possible == 3 and cache.entries == {}

    def emit(rows: list[list[int]], counts: list[int]) -> dict[tuple[int, ...], int]:
        units = torch.tensor(rows)
        cache.learn(units, torch.arange(units.shape[1]) < torch.tensor(counts)[:, None])
        return cache.entries

    assert emit([[2, 4, 7], [8, 8, 5]], [3, 2]) == {(0, 1): 4}  # 5 was not emitted
    assert list(emit([[2, 2], [5, 2]], [2, 2]).items()) == [((1, 0, 2), 5), ((0, 1), 4)]
    assert list(emit([[4], [2]], [1, 1]).items()) == [((0, 1), 4), ((1, 0, 2), 5)]  # 4 is the latest again
    assert list(emit([[6], [2]], [1, 1]).items()) == [((0, 1, 2), 6), ((0, 1), 4)]  # 5 is dropped
    assert len(emit([[4, 5, 6], [6, 5, 4]], [3, 3])) == 2 and list(cache.entries.values()) == [4, 6]
    assert (cache.stamps >= 0).all()


def test_joining_by_hand() -> None:
    """The longest n-gram at the end is joined if a unit begins where it does.

    Cached are (0, 1) → 3, (0, 1, 2) → 4 and (2, 0) → 5. Of the pieces 0, 1, 2, 0, 1, first 0, 1 become 3. With 2, the
    longer (0, 1, 2) begins where 3 does: they become 4. With 0, (2, 0) would begin inside 4: 0 stays alone. With 1, the
    pieces end with 0, 1 again: 3. In the second row, 2, 0 become 5, and 0, 1 would begin inside it: 1 stays alone.
    """
    pieces = ([0], [1], [2], [0, 1], [0, 1, 2], [2, 0])
    cache = NgramCache(table(pieces, [0, 1, 2, -1, -1, -1], 3), capacity=8, longest=3)
    cache.learn(torch.tensor([[3, 4, 5]]), torch.ones(1, 3, dtype=torch.bool))
    joined, found = Joined.none(2, torch.device("cpu")), []
    for column in torch.tensor([[0, 1, 2, 0, 1], [1, 2, 0, 1, 2]]).T:
        joined = joined.added(column[:, None], column[:, None], cache)
        units, exist, last = joined.listed()
        found.append([row[there].tolist() for row, there in zip(units, exist, strict=True)])
    assert [first for first, _ in found] == [[0], [3], [4], [4, 0], [4, 3]]
    assert [second for _, second in found] == [[1], [1, 2], [1, 5], [1, 5, 1], [1, 5, 1, 2]]
    assert last[0, :2].tolist() == [2, 4] and last[1, :4].tolist() == [0, 2, 3, 4]
    assert joined.count.tolist() == [2, 4]


def test_a_unit_behind_a_joined_one_has_its_own_noise() -> None:
    """Behind "ab" both models take b or c, alike; so under `match` they take the same one, if "ab" is one position."""
    after = {(A, C): C, (C, C): AB, (C, AB): (B, C), (AB, B): C, (AB, C): C, (B, C): C}
    spelled = {(A, C): C, (C, C): A, (C, A): B, (A, B): (B, C), (B, B): C, (B, C): C}
    target, rows = Markov.surely(4, after), 64
    drafter = omnidraft(Markov.surely(3, spelled), TABLE)
    decoder = Decoder(target, drafter, k=3)
    prompt = {"input_ids": torch.tensor([[A, C]]).expand(rows, -1), "attention_mask": torch.ones(rows, 2)}
    drafter.bind(target)
    drafter.ngrams.learn(torch.tensor([[AB]]), torch.ones(1, 1, dtype=torch.bool))
    state = decoder.start(prompt, 10, seed=5, warp=Warp.sampling())
    decoder.advance(state)
    assert state.step.draft.units[:, 1].tolist() == [AB] * rows
    assert (state.step.verdict.length == 2).all() and len(state.step.draft.units[:, 2].unique()) == 2


SPELLINGS = ([2], [0, 1, 3], [0], [1, 3], [1], [3])
RAGGED = {
    "input_ids": torch.tensor([[0, 1, 1, 2], [2, 1, 3, 0], [0, 0, 0, 5]]),
    "attention_mask": torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]]),
}


@pytest.mark.parametrize("budgets", [(5,), (0, 5), (5, 0, 0, 1, 4)], ids=str)
def test_the_small_models_cache_is_the_text_in_its_own_tokens(budgets: tuple[int, ...]) -> None:
    """Also where units were joined of pieces that it was not all fed, and near the end of a row."""
    likely = torch.tensor([0.0, 2.0, 0.0, 2.0, 0.0, 0.0])
    target = History(HistoryTarget.random(6, seed=3).table + likely)
    small = History(HistoryTarget.random(4, seed=8).table + likely[:4])
    drafter = omnidraft(small, table(SPELLINGS, [2, -1, 0, -1, 1, 3], 4))
    decoder = Decoder(target, drafter, k=5, policy=Cycle(*budgets))
    plain = Decoder(target).generate(RAGGED, 40, seed=1).units
    state = decoder.start(RAGGED, 40, seed=1)
    joined = 0
    while not state.finished:
        decoder.advance(state)
        memory = state.memory.cache
        for row in range(3):
            known = state.prompt_length + int(state.memory.seen[row])
            text = state.history[row, state.pads[row] : known].tolist()
            spelled = [piece for unit in text for piece in SPELLINGS[unit]]
            assert memory.cache.units[row, : memory.cache.length[row]].tolist() == spelled
        draft, path = state.step.draft, state.step.verdict.path
        taken = draft.units.gather(1, path.clamp(min=0))[path > 0]
        joined += int(((taken == 1) | (taken == 3)).sum())
    assert all(torch.equal(a, b) for a, b in zip(plain, state.output(), strict=True))
    assert joined > 3 and not state.report.faults


def test_one_vocabulary_is_draft_model() -> None:
    target, small = TransformersTarget(tiny_models.llama()), random_models.small()
    drafters = OmniDraft(OmniDraftOptions(model=small)), DraftModel(TransformersTarget(small, drafting=True))
    for warp in (Warp.sampling(), Warp.sampling(temperature=0)):
        found: list[list[Tensor]] = []
        for drafter in drafters:
            decoder = Decoder(target, drafter, k=4)
            state, drafts = decoder.start(tiny_models.prompt([0, 1, 2]), 12, seed=3, warp=warp), []
            while not state.finished:
                decoder.advance(state)
                drafts.append(state.step.draft.units)
            found.append(drafts)
        assert len(found[0]) == len(found[1]) and all(map(torch.equal, *found))


def test_the_cache_lives_from_call_to_call_and_not_from_target_to_target() -> None:
    drafter = omnidraft(SPELLER, TABLE)
    decoder = Decoder(TARGET, drafter, k=4)
    prompt = {"input_ids": torch.tensor([[A, C]]), "attention_mask": torch.ones(1, 2)}
    reports = [decoder.generate(prompt, 13, warp=Warp.sampling(temperature=0)).report for _ in range(2)]
    assert [report.rounds for report in reports] == [5, 4]  # in the second call, the first draft is right, too
    assert drafter.ngrams.entries == {(A, B): AB}
    Decoder(TARGET, drafter, k=4)
    assert drafter.ngrams.entries == {}


@pytest.mark.parametrize("options", [{"ngram": 8}, {"ngram": 1}, {"capacity": 0}], ids=str)
def test_sizes_that_cannot_be(options: dict[str, int], target: Any, good: Any) -> None:
    with pytest.raises(ValueError, match="|".join(options)):
        mmspec.enable(target, "omnidraft", drafter=good, **options)


def test_a_tokenizer_is_missing(target: Any, make_llama: Any) -> None:
    with pytest.raises(ValueError, match="omnidraft needs a smaller model"):
        mmspec.enable(target, "omnidraft")
    with pytest.raises(ValueError, match="name the target's tokenizer"):
        mmspec.enable(target, "omnidraft", drafter=make_llama(vocab_size=64))


@pytest.mark.parametrize("kind", ["kl", "reverse-kl"])
def test_the_hybrid_loss_by_hand(kind: str) -> None:
    """Of a text c, ab, a, b in which ab and b count: nats of both pieces of ab, 0.2 times; and of b the divergence over
    the three tokens that both have, behind a.
    """
    sizes = {**tiny_models.SIZES, "vocab_size": 4}
    target, small = (random_models.random_model(LlamaConfig(**{**sizes, "vocab_size": n}), seed=n) for n in (4, 3))
    lesson = TwoVocabularies(TransformersTarget(small), TransformersTarget(target), TABLE, kind)
    units, counted = torch.tensor([[C, AB, A, B]]), torch.tensor([[True, True, False, True]])
    with torch.no_grad():
        p = target(units).logits[0].softmax(-1)[2, :3]
        q = small(torch.tensor([[C, A, B, A, B]])).logits[0].log_softmax(-1)
    p = (p / p.sum()).log()
    divergence = {"kl": (p.exp() * (p - q[3])).sum(), "reverse-kl": (q[3].exp() * (q[3] - p)).sum()}[kind]
    expected = divergence + 0.2 * -(q[0, A] + q[1, B])
    assert torch.allclose(lesson.loss(units, counted), expected, atol=1e-5)
    assert lesson.loss(units[:, 1:], counted[:, 1:]) > 0, "no unit that counts is spelled"


def test_it_learns_while_it_serves(tmp_path: Any, prompts: Any) -> None:
    """Texts stay, the target's weights too; the small model's change, and what was learnt can be saved."""
    model = tiny_models.llama()
    small = random_models.random_model(LlamaConfig(**{**tiny_models.SIZES, "vocab_size": 4}), seed=5, head=8.0)
    before, own = ([weight.clone() for weight in each.parameters()] for each in (small, model))
    names = {"tokenizer": letters(joins()[:3]), "assistant_tokenizer": letters()}
    given, call = tiny_models.prompt([0, 1]), {"max_new_tokens": 20, "do_sample": False}
    expected = stock(model, given, 0, **call)
    learn = mmspec.Learning(rate=1e-3, steps=2, loss="reverse-kl")
    with mmspec.enable(model, drafter=OmniDraft(OmniDraftOptions(model=small, **names)), k=4, learn=learn) as spec:
        for _ in range(2):
            torch.manual_seed(0)
            assert_same(model.generate(**given, **call), expected, torch.get_rng_state())
        spec.save_drafter(tmp_path / "learnt")
    assert spec.learner is not None and spec.learner.steps == 4 and not spec.learner.stopped
    assert not all(map(torch.equal, before, small.parameters())) and all(map(torch.equal, own, model.parameters()))
    assert (tmp_path / "learnt" / "config.json").is_file()


def test_a_draft_ends_where_a_refusal_is_too_likely_by_hand() -> None:
    """The small model writes a, b, c, …; behind c, a and b the next piece is accepted with 0.8, 0.9 and 0.6: 0.8, 0.72
    and 0.432 together. So with γ = 0.3 two pieces are drafted behind c, with 0.2 one, and with 0.1 none.
    """
    for stop, pieces in ((0.3, 2), (0.2, 1), (0.1, 0), (1.0, 4)):
        drafter = omnidraft(Guessing(SPELLER.table), TABLE, stop=stop)
        decoder = Decoder(TARGET, drafter, k=4)
        prompt = {"input_ids": torch.tensor([[A, C]]), "attention_mask": torch.ones(1, 2)}
        state = decoder.start(prompt, 20, warp=Warp.sampling(temperature=0))
        decoder.advance(state)
        assert int(state.step.draft.valid[:, 1:].sum()) == pieces


def test_the_head_that_ends_drafts_learns_and_is_saved(tmp_path: Any) -> None:
    """Its loss is the binary cross-entropy with Σ min(p, q) of every unit but the first; texts stay the target's."""
    sizes = {**tiny_models.SIZES, "vocab_size": 4}
    target, small = (random_models.random_model(LlamaConfig(**{**sizes, "vocab_size": n}), seed=n) for n in (4, 3))
    head = stop_head(TransformersTarget(small), None)
    plain, guessing = (
        TwoVocabularies(TransformersTarget(small), TransformersTarget(target), TABLE, "kl", each)
        for each in (None, head)
    )
    units, counted = torch.tensor([[C, AB, A, B]]), torch.tensor([[True, True, False, True]])
    with torch.no_grad():
        p = target(units).logits[0].softmax(-1)[:3, :3]
        q = small(torch.tensor([[C, A, B, A, B]])).logits[0].softmax(-1)[[0, 2, 3]]
    alpha, sure = torch.minimum(p, q).sum(-1), torch.tensor(2.0).sigmoid()
    expected = -(alpha * sure.log() + (1 - alpha) * (1 - sure).log()).mean()
    more = guessing.loss(units, counted) - plain.loss(units, counted)
    assert torch.allclose(more, expected, atol=1e-5)
    head.bias.data.fill_(0.25)
    guessing.save(tmp_path)
    assert float(stop_head(TransformersTarget(small), tmp_path).bias.detach()) == 0.25
    small = random_models.random_model(LlamaConfig(**{**tiny_models.SIZES, "vocab_size": 4}), seed=5, head=8.0)
    names = {"tokenizer": letters(joins()[:3]), "assistant_tokenizer": letters()}
    model, given = tiny_models.llama(), tiny_models.prompt([0, 1])
    call = {"max_new_tokens": 20, "do_sample": False}
    expected_text = stock(model, given, 0, **call)
    drafter = OmniDraft(OmniDraftOptions(model=small, stop=0.4, **names))
    with mmspec.enable(model, drafter=drafter, k=4, learn=mmspec.Learning(rate=1e-2, steps=4)) as spec:
        drafted = []
        for _ in range(6):
            torch.manual_seed(0)
            assert_same(model.generate(**given, **call), expected_text, torch.get_rng_state())
            drafted.append(spec.report.drafted)
    assert spec.learner is not None and not spec.learner.stopped and float(drafter.head.bias.detach()) != 2.0
    assert len(set(drafted)) > 1


def joins() -> tuple[tuple[str, str], ...]:
    """All pairs of letters, pairs of pairs and so on, as many as the zoo's vocabulary has room for."""
    found = [(a, b) for a in "abcd" for b in "abcd"]
    pairs = ["".join(pair) for pair in found]
    more = [(a, b) for a in pairs for b in "abcd"] + [(a, b) for a in pairs for b in pairs]
    return tuple((found + more)[: VOCAB - 4])


@pytest.mark.thinned(1)
@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "temperature": 0.8}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_equal_to_unmodified_generate(name: str, sampling: dict[str, Any], prompts: Any) -> None:
    """A random small model of four letters; the target's tokens are up to four of them."""
    model, call = build(name), dict(max_new_tokens=20, **sampling)
    runs = {batch: stock(model, prompts(batch), 0, **call) for batch in (3, 1)}
    small = random_models.random_model(LlamaConfig(**{**tiny_models.SIZES, "vocab_size": 4}), seed=5, head=8.0)
    drafter = OmniDraft(OmniDraftOptions(model=small, tokenizer=letters(joins()), assistant_tokenizer=letters()))
    with mmspec.enable(model, drafter=drafter, k=4) as spec:
        for batch, expected in runs.items():
            torch.manual_seed(0)
            assert_same(model.generate(**prompts(batch), **call), expected, torch.get_rng_state())
            assert not spec.report.faults
    assert drafter.ngrams is not None and len(drafter.ngrams.entries) > 5


TRIE = ([0], [1], [2], [0, 1], [0, 1, 2], [1, 0], [0, 2])  # target ids 0 … 6, of three pieces


@pytest.mark.parametrize("cached", [{3}, {3, 5}, {3, 4, 5, 6}, {4}], ids=str)
def test_what_units_were_drawn_from_by_hand(cached: set[int]) -> None:
    """Every chain of three pieces is possible under what its units are said to be drawn from.

    For one n-gram (0, 1) → 3: q'(3) = q(0) q(1 | 0), and q'(0) = q(0) - q'(3); behind 0 alone no 1 is drawn.
    """
    g = torch.Generator().manual_seed(1)
    q = torch.rand(3, 3, generator=g)
    q = q / q.sum(-1, keepdim=True)
    cache = NgramCache(table(TRIE, [0, 1, 2, -1, -1, -1, -1], 3), capacity=8, longest=3)
    cache.learn(torch.tensor([sorted(cached)]), torch.ones(1, len(cached), dtype=torch.bool))
    for pieces in itertools.product(range(3), repeat=3):
        joined = Joined.none(1, torch.device("cpu"))
        for piece in pieces:
            joined = joined.added(torch.tensor([[piece]]), torch.tensor([[piece]]), cache)
        laws = torch.zeros(1, 3, 7)
        laws[0, :, :3] = torch.stack([q[2], q[pieces[0]], q[pieces[1]]])
        first, inside = drawn_from(cache, joined, laws)
        assert torch.allclose(first[0, 0, :3], q[2]) and torch.allclose(inside.sum(-1), torch.ones(1, 3))
        units, exist, _ = joined.listed()
        begun = joined.begun
        for unit, there, at in zip(units[0], exist[0], begun[0], strict=True):
            assert not there or (inside[0, at, unit] > 0 and first[0, at, pieces[at]] > 0)
        if cached == {3} and pieces[0] == 0:
            product = float(q[2, 0] * q[0, 1])
            whole = first[0, 0, 0] * inside[0, 0]
            assert float(whole[3]) == pytest.approx(product) and float(whole[0]) == pytest.approx(
                float(q[2, 0]) - product
            )
            assert pieces[1] == 1 or float(first[0, 1, 1]) == 0


SHORT = ([0], [1], [2], [0, 1, 2])  # of 0, 1 alone the unit 0 is left, and then 1 is known


@pytest.mark.parametrize("stop", [1.0, 0.35])
@pytest.mark.parametrize(
    ("spelled", "cached", "k"),
    [(TRIE, {3}, 2), (TRIE, {3, 4, 5, 6}, 3), (TRIE, {3, 4, 5, 6}, 4), (TRIE, {4, 5}, 4), (SHORT, {3}, 4)],
    ids=str,
)
def test_speculative_sampling_follows_the_target(spelled: Any, cached: set[int], k: int, stop: float) -> None:
    """Exact joints of four units, of a target with up to seven, of which its small model has three."""
    size, likely = len(spelled), torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 2.0], [2.0, 0.0, 0.0]])
    target = Markov(MarkovTarget.random(size, seed=3).table * 0.7)
    small = Guessing(MarkovTarget.random(3, seed=4).table * 0.3 + likely)
    drafter = omnidraft(small, table(spelled, [0, 1, 2, *[-1] * (size - 3)], 3), stop=stop)
    decoder = Decoder(target, drafter, Rejection(), k=k)
    tokens = torch.tensor([sorted(cached)])
    drafter.ngrams.learn(tokens, torch.ones_like(tokens, dtype=torch.bool))
    drafter.ngrams.learn = lambda *_: None  # what is cached stays
    rows = 60_000
    prompt = {"input_ids": torch.tensor([[0, 1]]).expand(rows, 2), "attention_mask": torch.ones(rows, 2)}
    out = decoder.generate(prompt, 4, seed=7)
    p = target.table.softmax(-1).double()
    joint = torch.einsum("a,ab,abc,bcd->abcd", p[0, 1], p[1], p, p)
    assert joint_p_value(torch.stack(out.units), joint) > 1e-4
    assert out.report.accepted > 0 and not out.report.faults
