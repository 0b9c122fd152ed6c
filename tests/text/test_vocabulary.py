"""Draft models with another vocabulary: what is a token of one in the other, and drafting across."""

import json
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, SuppressTokensLogitsProcessor
from transformers.convert_slow_tokenizer import bytes_to_unicode

import mmspec
from mmspec.compare.equality import assert_same
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.shapes import Branching
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.hosts import translated as translated_target
from mmspec.hosts.draft_models import refuse_other_tokenizer
from mmspec.hosts.loading import load_model
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.translated import TranslatedTarget
from mmspec.hosts.vocabulary import LONGEST, VocabularyMap, alike
from mmspec.testing.oracles import exact_joint
from mmspec.testing.toys.history import HistoryTarget
from tests.support.cycle import Cycle
from tests.support.laws import assert_follows

TEXT = (Path(__file__).parents[2] / "LICENSE").read_text().splitlines()


@lru_cache
def byte_level(size, **special):
    """A byte-level BPE: all bytes, `size` ids in all."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet, first = sorted(pre_tokenizers.ByteLevel.alphabet()), sorted(set(special.values()))
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=first, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(TEXT, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, **special)


@lru_cache
def unigram(size):
    """A sentencepiece-like Unigram: "▁" for spaces, byte tokens for what it lacks."""
    core = Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    core.train_from_iterator(TEXT[:80], trainer)
    scored = json.loads(core.to_str())["model"]["vocab"]
    scored[3:3] = [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    made = Tokenizer(models.Unigram([tuple(pair) for pair in scored], unk_id=0, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


GPT = {"eos_token": "<|end|>"}
LARGE, SMALL = byte_level(400, **GPT), byte_level(330, **GPT)


def test_byte_level_tokenizers_of_two_sizes():
    """The smaller one is a part of the larger one: what it has is mapped, what it lacks is spelled as it would."""
    table = VocabularyMap.between(LARGE, SMALL, 400, 330)
    here, there = LARGE.get_vocab(), SMALL.get_vocab()
    assert set(there) < set(here)
    for token, i in here.items():
        assert table.draft_of[i] == there.get(token, -1)
        pieces = table.spelling[i, : table.length[i]]
        if token not in there:
            assert len(pieces) > 1 and pieces.tolist() == SMALL(LARGE.decode([i])).input_ids[-LONGEST:]
    assert table.shared == pytest.approx(330 / 400) and (table.spelling[:, 0] >= 0).all()


def test_bytes_and_sentencepiece():
    sentence = unigram(300)
    size = len(sentence)
    table = VocabularyMap.between(LARGE, sentence, 400, size)
    here, there = LARGE.get_vocab(), sentence.get_vocab()
    alike = {"Ġthe": "▁the", "Ġ": "▁", "Ċ": "<0x0A>", "Ã": "<0xC3>", "e": "e", "<|end|>": "</s>"}
    for ours, theirs in alike.items():
        assert table.draft_of[here[ours]] == there[theirs], (ours, theirs)
    mapped = table.draft_of[table.draft_of >= 0]
    assert len(mapped.unique()) == len(mapped), "no draft id may stand for two tokens"
    for i in range(400):
        pieces = table.spelling[i, : table.length[i]]
        if i not in LARGE.all_special_ids:
            spelled, whole = read(sentence.convert_ids_to_tokens(pieces)), raw(LARGE.convert_ids_to_tokens(i))
            assert spelled == whole or (len(pieces) == LONGEST and whole.endswith(spelled))


def raw(token):
    """The bytes of a byte-level token."""
    characters = {c: byte for byte, c in bytes_to_unicode().items()}
    return bytes(characters[c] for c in token)


def read(tokens):
    """The bytes of sentencepiece tokens."""
    parts = [bytes.fromhex(t[3:5]) if t.startswith("<0x") else t.replace("▁", " ").encode() for t in tokens]
    return b"".join(parts)


def test_the_other_way_round():
    """Of two tokens with the same bytes (a letter, and its byte token) one is drafted: the letter."""
    sentence = unigram(300)
    table = VocabularyMap.between(sentence, LARGE, len(sentence), 400)
    here, there = sentence.get_vocab(), LARGE.get_vocab()
    assert table.draft_of[here["e"]] == there["e"] and table.draft_of[here["<0x65>"]] == -1
    assert table.spelling[here["<0x65>"], 0] == there["e"]
    assert table.draft_of[here["</s>"]] == there["<|end|>"] and table.draft_of[here["<s>"]] == -1


def test_special_tokens_by_content_then_by_role():
    one = byte_level(300, eos_token="<end>", bos_token="<begin>", pad_token="<pad>")
    two = byte_level(310, eos_token="<stop>", bos_token="<begin>", pad_token="<stop>")
    table = VocabularyMap.between(one, two, 300, 310)
    here, there = one.get_vocab(), two.get_vocab()
    assert table.draft_of[here["<begin>"]] == there["<begin>"]
    assert table.draft_of[here["<end>"]] == there["<stop>"]
    assert table.draft_of[here["<pad>"]] == -1, "<stop> is taken"
    assert table.spelling[here["<pad>"], : table.length[here["<pad>"]]].tolist() == [there["<stop>"]]


def test_padded_rows_of_a_model_are_never_drafted():
    table = VocabularyMap.between(LARGE, SMALL, 448, 384)
    assert len(table.draft_of) == 448 and (table.draft_of[400:] == -1).all() and table.draft_of.max() < 330
    assert table.logits(torch.zeros(2, 3, 384)).isfinite().sum(-1).unique().tolist() == [330]


def test_long_tokens_keep_the_end_of_their_spelling():
    table = VocabularyMap.between(byte_level(1200, **GPT), byte_level(257, **GPT), 1200, 257)
    assert table.longest == LONGEST
    (i,) = [i for t, i in byte_level(1200, **GPT).get_vocab().items() if t == "ĠContribution"]
    assert byte_level(257, **GPT).decode(table.spelling[i]) == "ribution"


def test_refusals(make_llama):
    with pytest.raises(ValueError, match="the map is for 400 draft ids and the model has 131"):
        TranslatedTarget(TransformersTarget(make_llama()), VocabularyMap.padded(131, 400))
    with pytest.raises(ValueError, match="no token in common"):
        VocabularyMap.between(LARGE, SMALL, 400, 0)


# --- a toy: what the draft model's cache holds, and the distribution of the output ---


class Reading(HistoryTarget):
    """Takes prompts as transformers' targets do."""

    def start(self, inputs, limit, width):
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        return super().start((ids, (mask == 0).sum(1)), limit, width)


TOY = Reading(HistoryTarget.random(4, seed=3).table)
DRAFT = Reading(HistoryTarget.random(5, seed=8).table)
PIECES = ([2], [4, 1, 3], [0], [1, 4])
TABLE = VocabularyMap(
    torch.tensor([2, -1, 0, -1]),
    torch.tensor([p + [-1] * (3 - len(p)) for p in PIECES]),
    torch.tensor([len(p) for p in PIECES]),
    5,
)
RAGGED = {
    "input_ids": torch.tensor([[0, 1, 1, 2], [2, 1, 3, 0], [0, 0, 0, 2]]),
    "attention_mask": torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]]),
}


@pytest.mark.parametrize("budgets", [(3,), (0, 3), (3, 0, 0, 1, 2)])
@pytest.mark.parametrize("shape", [None, Branching((2, 1, 2))])
def test_the_draft_models_cache_is_the_text_in_its_own_tokens(shape, budgets):
    """Also where rows need unequal numbers of pieces; and the distribution of the root's children is what follows
    that text.
    """
    drafter = DraftModel(TranslatedTarget(DRAFT, TABLE), shape)
    decoder = Decoder(TOY, drafter, k=3, policy=Cycle(*budgets))
    plain = Decoder(TOY).generate(RAGGED, 40, seed=1).units
    state = decoder.start(RAGGED, 40, seed=1)
    uneven = 0
    while not state.finished:
        decoder.advance(state)
        memory = state.memory.cache
        for row in range(3):
            known = state.prompt_length + int(state.memory.seen[row])
            text = state.history[row, state.pads[row] : known].tolist()
            spelled = [piece for unit in text for piece in PIECES[unit]]
            assert memory.cache.units[row, : memory.cache.length[row]].tolist() == spelled
            assert memory.length[row] == len(spelled)
        uneven += memory.spelled is not None and not memory.spelled.even and not memory.spelled.draft.index.is_chain
    assert all(torch.equal(a, b) for a, b in zip(plain, state.output(), strict=True))
    assert uneven > 3 and not state.report.faults


def test_rows_of_unequal_spellings_share_columns():
    """What a row does not need of a column is refused: its position may lie beyond the context."""
    draft_model = TranslatedTarget(DRAFT, TABLE)
    cache = draft_model.start(RAGGED, 5, 5).cache
    units = torch.tensor([[0, 1], [1, 2], [3, 0]])
    draft_model.verify(cache, Draft.chain(units[:, 1:]).rooted(units[:, 0], torch.tensor([1, 1, 0])))
    inner = cache.spelled.draft
    assert inner.valid.sum(1).tolist() == [1 + 3, 3 + 1, 2]
    for row, pieces in enumerate(([2, 4, 1, 3], [4, 1, 3, 0], [1, 4])):
        assert inner.units[row, inner.valid[row]].tolist() == pieces
        assert inner.index.depth[row, inner.valid[row]].tolist() == list(range(len(pieces)))


def test_columns_that_no_row_needs_change_nothing():
    """Off the CPU nobody reads how many columns a draft needs: every node gets those of the longest spelling."""
    units = torch.tensor([[0, 1, 2], [1, 2, 0], [3, 0, 2]])
    draft = Draft.tree(units[:, 1:], [-1, -1]).rooted(units[:, 0], torch.tensor([1, 1, 0]))
    widths, uniform, longest = translated_target._columns(TABLE, draft, torch.tensor([4, 6, 5]))
    assert longest == 6
    needed = translated_target._spell(TABLE, draft, widths, uniform)
    roomy = translated_target._spell(TABLE, draft, [3] * 3, False)
    assert roomy.draft.nodes == 9 > needed.draft.nodes
    for row, node in draft.valid.nonzero().tolist():
        paths = []
        for spelled in (needed, roomy):
            inner, last = spelled.draft, int(spelled.last[row, node])
            on_path = inner.index.ancestor.expand(3, -1, -1)[row, last]
            assert inner.valid[row, on_path].all() and spelled.pieces[row, node] == len(PIECES[units[row, node]])
            paths.append(inner.units[row, on_path].tolist())
        assert paths[0] == paths[1] == [*PIECES[units[row, 0]], *(PIECES[units[row, node]] if node else [])]


PADDED = VocabularyMap.padded(4, 5, tokens=3)


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("rule", "shape"), [(Rejection(), None), (Block(), None), (RecursiveRejection(), Branching((2, 1)))]
)
@pytest.mark.parametrize("table", [TABLE, PADDED], ids=["other tokens", "padding"])
def test_exact_distribution(rule, shape, table):
    drafter = DraftModel(TranslatedTarget(DRAFT, table), shape)

    def sample(seed, rows):
        prompt = {"input_ids": torch.tensor([[0, 1]]).expand(rows, -1), "attention_mask": torch.ones(rows, 2)}
        return torch.stack(Decoder(TOY, drafter, rule, k=2).generate(prompt, 4, seed=seed).units)

    assert_follows(sample, exact_joint(TOY.next_distribution([0, 1]), 4, 4), rows=30_000)


def test_its_distributions_lie_on_what_both_have():
    decoder = Decoder(TOY, DraftModel(TranslatedTarget(DRAFT, TABLE)), Rejection(), k=3)
    distribution = decoder.speculate(decoder.start(RAGGED, 20)).draft.distribution
    assert (distribution.probs[..., [1, 3]] == 0).all() and torch.allclose(
        distribution.probs[..., [0, 2]].sum(-1), torch.ones(3, 3)
    )
    decoder = Decoder(TOY, DraftModel(TranslatedTarget(DRAFT, PADDED)), Rejection(), k=3)
    distribution = decoder.speculate(decoder.start(RAGGED, 20)).draft.distribution
    assert (distribution.probs[..., 3] == 0).all(), "padding is never drawn"
    assert torch.allclose(distribution.probs[..., :3].sum(-1), torch.ones(3, 3))


# --- transformers models ---


def reindexed(model, draft_of, size, make_llama):
    """The same weights in the other vocabulary; ids that the model knows nothing of are as good as never said."""
    config = {k: v for k, v in model.config.to_dict().items() if k in ("max_position_embeddings", "eos_token_id")}
    other = make_llama(vocab_size=size, **config)
    weights = {k: v for k, v in model.state_dict().items() if "embed_tokens" not in k and "lm_head" not in k}
    other.load_state_dict(weights, strict=False)
    mapped = draft_of >= 0
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = other.get_parameter(name).data
        rows[draft_of[mapped]] = model.get_parameter(name).data[mapped]
    return other


@pytest.fixture(scope="module")
def large(make_llama):
    return make_llama(vocab_size=400)


@pytest.fixture(scope="module")
def small(large, make_llama):
    """The large model's weights behind the smaller tokenizer, and its map."""
    table = VocabularyMap.between(LARGE, SMALL, 400, 336)
    return reindexed(large, table.draft_of, 336, make_llama), table


def translated(small, shape=None):
    model, table = small
    return DraftModel(TranslatedTarget(TransformersTarget(model), table), shape)


def inputs(rows):
    """Prompts of several lengths, with tokens in them that the smaller tokenizer lacks."""
    texts = ["hereby grants to You a perpetual", "License", "Subject to the terms and conditions of"][:rows]
    LARGE.pad_token, LARGE.padding_side = "<|end|>", "left"
    return LARGE(texts, return_tensors="pt", padding=True, return_token_type_ids=False)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("shape", [None, Branching((2, 2, 1))])
@pytest.mark.parametrize("how", [{}, {"do_sample": True}])
@pytest.mark.compiled
def test_equals_stock(large, small, rows, shape, how, theirs):
    prompts = inputs(rows)
    assert (small[1].draft_of[prompts["input_ids"]] < 0).any(), "the prompt must hold tokens that are spelled"
    expected = theirs(large, prompts, 3, max_new_tokens=48, **how)
    with mmspec.enable(large, drafter=translated(small, shape), k=4) as spec:
        torch.manual_seed(3)
        ids = large.generate(**prompts, max_new_tokens=48, **how)
    new = ids[:, prompts["input_ids"].shape[1] :]
    assert (small[1].draft_of[new] < 0).any(), "and so must the output"
    assert_same(ids, expected)
    assert not spec.report.faults
    print(spec.report)


@pytest.mark.parametrize("rule", [Match(), Rejection()])
def test_the_same_weights_are_accepted(large, small, rule):
    """Where the target keeps to tokens that both have; ids differ, and distributions do not."""
    only = Warp([SuppressTokensLogitsProcessor((small[1].draft_of < 0).nonzero()[:, 0].tolist())])
    texts = SMALL(["You may", "subject to"]).input_ids
    ids = torch.tensor([LARGE.convert_tokens_to_ids(SMALL.convert_ids_to_tokens(row[:4])) for row in texts])
    decoder = Decoder(TransformersTarget(large), translated(small), rule, k=4)
    report = decoder.generate(ids, 41, seed=1, warp=only).report
    assert report.acceptance_rate == 1 and report.acceptance_length == 5


def test_spelled_tokens_keep_the_draft_model_in_the_picture(large, small):
    """One token in six can only be spelled, in prompt and output, and these models are thrown off by little."""
    report = Decoder(TransformersTarget(large), translated(small), k=4).generate(inputs(3), 60, seed=1).report
    print(report)
    assert report.acceptance_length > 1.2


@pytest.mark.parametrize("shape", [None, Branching((2, 2, 1))])
def test_identical_vocabularies_draft_the_same(target, good, prompts, shape):
    model = TransformersTarget(good)
    rounds = []
    for small in (model, TranslatedTarget(model, VocabularyMap.padded(131, 131))):
        decoder = Decoder(TransformersTarget(target), DraftModel(small, shape), k=3)
        state, units = decoder.start(prompts(3), 30, seed=2), []
        while not state.finished:
            decoder.advance(state)
            units.append(state.step.draft.units[~state.done | (state.step.count > 0)])
        rounds.append(units)
    assert len(rounds[0]) == len(rounds[1]) and all(map(torch.equal, *rounds))


@pytest.mark.parametrize("size", [120, 144])
def test_padded_sizes(target, prompts, size, make_llama):
    """One tokenizer, two padded sizes; ids beyond the smaller one's are as good as never said."""
    table = VocabularyMap.padded(131, size)
    drafter = translated((reindexed(target, table.draft_of, size, make_llama), table))
    given, rare = prompts(3), Warp([SuppressTokensLogitsProcessor(list(range(120, 131)))])
    common = {**given, "input_ids": given["input_ids"].clamp(max=119)}
    for inputs, warp in ((given, Warp()), (common, rare)):
        plain = Decoder(TransformersTarget(target)).generate(inputs, 40, seed=4, warp=warp).units
        output = Decoder(TransformersTarget(target), drafter, k=4).generate(inputs, 40, seed=4, warp=warp)
        assert all(torch.equal(a, b) for a, b in zip(plain, output.units, strict=True))
    assert output.report.acceptance_rate == 1


@pytest.fixture(scope="module")
def homes(make_llama, tmp_path_factory):
    """Folders of a target and of draft models: one tokenizer of 400, four sizes."""
    homes = {}
    for size in (448, 416, 480, 390):
        folder = homes[size] = tmp_path_factory.mktemp(f"padded-{size}")
        make_llama(vocab_size=size).save_pretrained(folder)
        LARGE.save_pretrained(folder)
    return homes


@pytest.mark.thinned(1)
@pytest.mark.parametrize("method", ["draft-model", "draft-tree", "rsd"])
@pytest.mark.parametrize("size", [416, 480, 390])
def test_a_padded_draft_model_needs_no_tokenizers(homes, method, size, theirs):
    """The tokenizers that are stored with both say that they are one; the smallest model lacks its last tokens."""
    model = load_model(str(homes[448]))
    prompts = inputs(2)
    with mmspec.enable(model, method, drafter=str(homes[size]), k=3) as spec:
        words = spec._decoder.drafter.model.vocabulary
        ids = model.generate(**prompts, max_new_tokens=24, do_sample=method != "rsd")
    known = min(size, 400)
    assert words.draft_of[:known].tolist() == list(range(known)) and (words.draft_of[known:] == -1).all()
    if method != "rsd":
        expected = theirs(model, prompts, 0, max_new_tokens=24, do_sample=True)
        torch.manual_seed(0)
        with mmspec.enable(model, method, drafter=str(homes[size]), k=3) as spec:
            assert_same(model.generate(**prompts, max_new_tokens=24, do_sample=True), expected)
    assert ids.max() < 448 and not spec.report.faults and spec.report.drafted > 0


def test_a_model_without_a_home_still_needs_them(homes, make_llama):
    with pytest.raises(ValueError, match="has 416 unit ids and the target 400: name the target's tokenizer"):
        mmspec.enable(make_llama(vocab_size=400), "draft-model", drafter=str(homes[416]))


def test_a_text_longer_than_the_draft_models_context_goes_on_without_drafts(large, make_llama):
    """In its own tokens, that is: one target token is up to eight of them."""
    short = make_llama(vocab_size=257, max_position_embeddings=64)
    table = VocabularyMap.between(LARGE, byte_level(257, **GPT), 400, 257)
    plain = Decoder(TransformersTarget(large)).generate(inputs(1), 60, seed=4).units
    with pytest.warns(UserWarning, match="longer than the draft model's context of 64"):
        output = Decoder(TransformersTarget(large), translated((short, table)), k=3).generate(inputs(1), 60, seed=4)
    assert torch.equal(plain[0], output.units[0]) and output.report.drafted > 0


@pytest.fixture(scope="module")
def strangers(make_llama, tmp_path_factory):
    """Folders of models with as many ids as the target of 448 and with fewer, and with tokenizers of their own."""
    homes = {}
    for name, size, tokenizer in (("as many", 448, unigram(400)), ("fewer", 416, unigram(400)), ("same", 448, LARGE)):
        folder = homes[name] = tmp_path_factory.mktemp(name.replace(" ", "-"))
        make_llama(vocab_size=size).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return homes


@pytest.mark.parametrize("name", ["as many", "fewer"])
def test_another_tokenizer_is_said_and_mapped(homes, strangers, name, theirs, recwarn):
    """Also where only the number of ids is the same; and not a word where the user says which tokenizers these are."""
    model, prompts = load_model(str(homes[448])), inputs(2)
    with pytest.warns(UserWarning, match=r"has another tokenizer than the target: it has \d+% of the target's tokens"):
        spec = mmspec.enable(model, "draft-model", drafter=str(strangers[name]), k=3)
    with spec:
        table = spec._decoder.drafter.model.vocabulary
        assert torch.equal(table.draft_of, VocabularyMap.between(LARGE, unigram(400), 448, table.draft_vocab).draft_of)
        torch.manual_seed(0)
        ids = model.generate(**prompts, max_new_tokens=16, do_sample=True)
    assert_same(ids, theirs(model, prompts, 0, max_new_tokens=16, do_sample=True))
    recwarn.clear()
    tokenizers = {"tokenizer": LARGE, "assistant_tokenizer": unigram(400)}
    with mmspec.enable(model, "draft-model", drafter=str(strangers[name]), k=3, **tokenizers):
        pass
    assert not [warned for warned in recwarn if "tokenizer" in str(warned.message)]


def test_the_same_tokenizer_elsewhere_is_no_other(homes, strangers, recwarn):
    model = load_model(str(homes[448]))
    with mmspec.enable(model, "draft-model", drafter=str(strangers["same"]), k=3) as spec:
        assert isinstance(spec._decoder.drafter.model, TransformersTarget)
    added = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(LARGE.backend_tokenizer.to_str()))
    added.add_tokens(["<|user|>"], special_tokens=True)
    assert alike(LARGE, added) and alike(added, LARGE)
    assert alike(LARGE, SMALL), "the first tokens of the same training"
    assert not alike(LARGE, unigram(400)) and not alike(unigram(400), LARGE)
    assert not [warned for warned in recwarn if "tokenizer" in str(warned.message)]


def test_a_drafter_that_maps_nothing_refuses_another_tokenizer(homes, strangers):
    target = TransformersTarget(load_model(str(homes[448])))
    refuse_other_tokenizer(TransformersTarget(load_model(str(strangers["same"]))), target)
    with pytest.raises(ValueError, match="has another tokenizer than the target"):
        refuse_other_tokenizer(TransformersTarget(load_model(str(strangers["as many"]))), target)


@pytest.mark.parametrize("method", ["draft-model", "draft-tree", "rsd", "stree", "pearl", "vocab-trim"])
def test_no_model_of_ours_is_recommended_for_others(make_llama, method):
    with pytest.raises(ValueError, match="smaller model") as error:
        mmspec.enable(make_llama(), method)
    assert "mmspec/" not in str(error.value)
