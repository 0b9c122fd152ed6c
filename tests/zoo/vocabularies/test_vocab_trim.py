"""vocab-trim: which ids are kept, two rounds by hand, and the cut layer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, PreTrainedModel

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.hosts.loading import load_tokenizer
from mmspec.hosts.target import TransformersTarget
from mmspec.kits.text.corpus import counted, kept_ids
from mmspec.testing import tiny_models
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_zoo.vocabularies.vocab_trim import CutHeadTarget, VocabTrim, VocabTrimOptions, widened
from tests.support import random_models
from tests.support.examples.zoo import JOINS, letters, speller
from tests.support.zoo import build
from tests.text.test_methods_equal_stock import MODELS, noisy

IDS = 8
CORPUS = [[2, 3, 3, 5], [5, 5, 6, 6]]


def counting() -> Any:
    """A transformers model of eight ids: the id `d` further on has the probability 2^(7 - d) / 127.

    Attention and feed-forward parts are zero and embeddings are unit vectors, so that logits are a row of the output
    layer; the norm behind the layers makes the unit vector √8 long.
    """
    sizes = {**tiny_models.SIZES, "vocab_size": IDS, "hidden_size": IDS, "head_dim": 4}
    model: Any = random_models.random_model(LlamaConfig(**sizes))
    further = (torch.arange(IDS)[:, None] - torch.arange(IDS)) % IDS  # [id, the one before]
    chance = torch.where(further > 0, 2.0 ** (7 - further), 1e-6)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "_proj" in name:
                weight.zero_()
            elif "norm" in name:
                weight.fill_(1)
        model.model.embed_tokens.weight.copy_(torch.eye(IDS))
        model.lm_head.weight.copy_(chance.log() / IDS**0.5)
    return model


def by_ones() -> MarkovTarget:
    """A target that counts by ones, nearly surely."""
    table = torch.zeros(IDS, IDS, IDS)
    for unit in range(IDS):
        table[:, unit, (unit + 1) % IDS] = 9.0
    return MarkovTarget(table)


def test_kept_ids_by_hand() -> None:
    """The corpus has 5 three times, 3 and 6 twice, 2 once.

    Three ids: 3, 5, 6. Five: 2, and of those that never occur the smallest, 0. With 7 as a special one, three ids are
    7, 5 and, of 3 and 6, the smaller.
    """
    counts = torch.from_numpy(counted(CORPUS, None, IDS))
    assert counts.tolist() == [0, 0, 1, 2, 0, 3, 2, 0]
    assert kept_ids(counts, frozenset(), 3) == [3, 5, 6]
    assert kept_ids(counts, frozenset(), 5) == [0, 2, 3, 5, 6]
    assert kept_ids(counts, frozenset({7}), 3) == [3, 5, 7]
    assert kept_ids(counts, frozenset(), 8) == list(range(8))
    assert kept_ids(counts, frozenset({7}), 3, torch.arange(IDS) % 2 > 0) == [3, 5, 7]
    assert kept_ids(counts, frozenset({6}), 6, torch.arange(IDS) % 2 > 0) == [1, 3, 5, 7]  # 6 is not possible


def test_two_rounds_by_hand() -> None:
    """The small model likes the next number best, then the one after it, and so on; it keeps 3, 5 and 6.

    Round 1, behind 2: of 3, 5 and 6, which are 1, 3 and 4 further on, q is 64, 16 and 8 of 88; 3 is drafted. Behind 3:
    4 is cut, 5 is next. Behind 5: 6. The target counts 3, 4: one is accepted.
    Round 2, behind 4: 5, 6; behind 6, 3 and 5 are 5 and 7 further on: 3. The target counts 5, 6, 7: two are accepted.
    """
    drafter = VocabTrim(VocabTrimOptions(model=counting(), keep=3, corpus=CORPUS))
    decoder = Decoder(by_ones(), drafter, k=3)
    state = decoder.start(torch.tensor([[0, 1]]), 20, warp=Warp.sampling(temperature=0))
    drafts, accepted = [], []
    for _ in range(2):
        decoder.advance(state)
        drafts.append(state.step.draft.units[0].tolist())
        accepted.append(int(state.step.verdict.length))
    assert drafts == [[2, 3, 5, 6], [4, 5, 6, 3]]  # each behind its root
    assert accepted == [1, 2] and state.output()[0].tolist() == [2, 3, 4, 5, 6, 7]


def test_q_by_hand() -> None:
    """Behind 2, the whole layer's q is 64, 32, 16, 8, … of 127 for 3, 4, 5, 6; for the kept ids, 64, 16, 8 of 88."""
    drafter = VocabTrim(VocabTrimOptions(model=counting(), keep=3, corpus=CORPUS))
    drafter.bind(by_ones())
    output = drafter.model.start(torch.tensor([[1, 2]]), 4, 4).output
    q = output.logits[0, 0].softmax(-1)
    assert drafter.kept == [3, 5, 6]
    assert q.tolist() == pytest.approx([0, 0, 0, 64 / 88, 0, 16 / 88, 8 / 88, 0], abs=1e-5)
    assert float(q.sum()) == pytest.approx(1) and (q[[0, 1, 2, 4, 7]] == 0).all()


def test_scattered_and_gathered_again() -> None:
    values, kept = torch.randn(2, 3, 4), torch.tensor([0, 2, 5, 6])
    wide = widened(values, kept, IDS)
    assert torch.equal(wide[..., kept], values) and wide.isneginf().sum() == 2 * 3 * 4
    assert torch.equal(widened(wide, kept, IDS), wide)  # over all ids already


@pytest.mark.parametrize("name", [*MODELS, pytest.param("cohere", marks=pytest.mark.slow)])
def test_the_cut_layer(name: str) -> None:
    """What is kept is as before, behind a soft-cap, too; the live model has all rows, and shares all other weights."""
    model = build(name)
    whole = TransformersTarget(model, drafting=True)
    before, vocab = dict(model.named_modules()), model.config.get_text_config().vocab_size
    kept = list(range(3, vocab, 7))
    cut = CutHeadTarget(whole, kept)
    ids = torch.arange(20).reshape(2, 10)
    draft = Draft.chain(torch.tensor([[9, 11], [2, 4]])).rooted(torch.tensor([5, 6]), torch.tensor([2, 2]))
    found = []
    for target in (whole, cut):
        started = target.start(ids, 8, 8)
        found.append(torch.cat([started.output.logits, target.verify(started.cache, draft).logits], 1))
    assert torch.allclose(found[1][..., kept], found[0][..., kept], atol=1e-4)
    assert found[1].isneginf().sum() == found[1].numel() // vocab * (vocab - len(kept))
    assert dict(model.named_modules()) == before and model.get_output_embeddings().weight.shape[0] == vocab
    head = cut.target.model.get_output_embeddings()
    assert head.weight.shape[0] == len(kept) == head.out_features
    own = [weight for weight in cut.target.model.parameters() if all(weight is not w for w in model.parameters())]
    assert [weight.shape for weight in own] == [weight.shape for weight in head.parameters()]


def test_all_ids_is_the_whole_model() -> None:
    """k = V cuts nothing: drafts are those of `draft-model`."""
    small, target = random_models.small(), TransformersTarget(tiny_models.llama())
    drafter = VocabTrim(VocabTrimOptions(model=small, keep=7, corpus=[1, 2]))
    found = []
    for each in (drafter, DraftModel(TransformersTarget(small, drafting=True))):
        decoder = Decoder(target, each, k=4)
        state = decoder.start(tiny_models.prompt([0, 1, 2]), 12, seed=3)
        drafts = []
        while not state.finished:
            decoder.advance(state)
            drafts.append(state.step.draft.units)
        found.append(drafts)
    assert drafter.kept is None and isinstance(drafter.model, TransformersTarget)
    assert len(found[0]) == len(found[1]) and all(map(torch.equal, *found))


def test_special_ids_are_kept() -> None:
    """Those of the target's tokenizer and settings, though the corpus has none of them."""
    model = build("llama")
    model.generation_config.eos_token_id = [7, 9]
    corpus = [20] * 5 + [30] * 4 + [40]
    drafter = VocabTrim(VocabTrimOptions(model=noisy(model, 0.05), corpus=corpus, keep=6))
    drafter.bind(TransformersTarget(model))
    assert drafter.kept == [0, 1, 7, 9, 20, 30]  # padding, and the beginning of a text
    with pytest.raises(ValueError, match="keep=2 leaves no id to draft beside the 4 special ones"):
        mmspec.enable(model, "vocab-trim", drafter=noisy(model, 0.05), corpus=corpus, keep=2)


def test_the_targets_own_output() -> None:
    """The whole layer, until eight units came; rows are chosen anew behind 8, 16 and 32 units, between calls."""
    drafter = VocabTrim(VocabTrimOptions(model=counting(), keep=3, after=8))
    decoder = Decoder(by_ones(), drafter, k=3)
    warp, kept, counts = Warp.sampling(temperature=0), [], []
    for first, units in ((1, 5), (4, 3), (4, 3), (5, 6), (1, 1)):
        decoder.generate(torch.tensor([[0, first]]), units, warp=warp)
        kept.append(drafter.kept)
        counts.append(drafter._counts.tolist())
    assert counts[0] == [0, 0, 1, 1, 1, 1, 1, 0]  # 2, 3, 4, 5, 6
    assert counts[1] == [0, 0, 1, 1, 1, 2, 2, 1]  # and 5, 6, 7
    assert kept[:2] == [None, None] and kept[2] == kept[3] == [2, 5, 6]  # 5 and 6, and of the others the smallest
    assert counts[3] == [1, 1, 2, 2, 1, 3, 4, 3]  # and 5, 6, 7; 6, 7, 0, 1, 2, 3
    assert kept[4] == [5, 6, 7]


def test_another_tokenizer() -> None:
    """The target's ids are counted, 4 ("ab") among them; kept are those that the small model has, and its ids."""
    options = VocabTrimOptions(
        model=speller(), tokenizer=letters(JOINS), assistant_tokenizer=letters(), keep=2, corpus=["ababdab", "dcd"]
    )
    drafter = VocabTrim(options)
    decoder = Decoder(MarkovTargetOfMappings(), drafter, k=3)
    assert drafter._special == frozenset()
    # "ab", "ab", "d", "ab" and "d", "cd": of ids with a partner, "d" leads, and then the smallest, "a".
    assert drafter.kept == [0, 3]
    assert drafter.model.target.kept.tolist() == [0, 3]
    plain = Decoder(MarkovTargetOfMappings()).generate({"input_ids": torch.tensor([[0, 1]])}, 12, seed=1)
    assert torch.equal(decoder.generate({"input_ids": torch.tensor([[0, 1]])}, 12, seed=1).units[0], plain.units[0])


class MarkovTargetOfMappings(MarkovTarget):
    """A random target of seven ids that takes prompts as those of transformers do."""

    def __init__(self) -> None:
        super().__init__(MarkovTarget.random(7, 3).table)

    def start(self, inputs: Any, limit: int, width: int) -> Any:
        return super().start(inputs["input_ids"], limit, width)


def test_corpora(tmp_path: Path, monkeypatch: Any) -> None:
    """A file of text in pieces, texts, ids, lists of ids, arrays and generators; all the same counts."""
    tokenizer = load_tokenizer("mmspec/text-1m")
    text = "".join(f"line {number}: a = b\n" for number in range(200))
    (tmp_path / "text.txt").write_text(text)
    expected = counted(tokenizer(text).input_ids, None, 4096)
    read: list[int] = []

    def noted(texts: Any, **options: Any) -> Any:
        read.append(len(texts))
        return tokenizer(texts, **options)

    monkeypatch.setattr("mmspec.kits.text.corpus.PIECE", 500)
    found = [counted(tmp_path / "text.txt", noted, 4096)]
    assert len(read) > 5 and max(read) < 600  # a large file is never whole in memory
    lines = text.splitlines(keepends=True)
    found += [counted(lines, tokenizer, 4096), counted((line for line in lines), tokenizer, 4096)]
    ids = [tokenizer(line).input_ids for line in lines]
    found += [counted(ids, None, 4096), counted((torch.tensor(each) for each in ids), None, 4096)]
    found += [counted(np.concatenate(ids), None, 4096), counted(iter(np.concatenate(ids)), None, 4096)]
    assert all((counts == expected).all() for counts in found)
    assert counted([2**15, 1], None, 2**17)[2**15] == 1


def generated() -> Iterator[int]:
    yield from ()


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ("nowhere.txt", "no corpus at nowhere.txt"),
        ([], "the corpus is empty"),
        ([[], []], "the corpus is empty"),
        (generated(), "the corpus is empty"),
        ([1, -3], "token ids -3 … 1 and the target's are 0 … 130"),
        ([[1, 500]], "token ids 1 … 500 and the target's are 0 … 130; it was made with another tokenizer"),
        ([0.5, 0.25], "lists of ids; got 0.5"),
        ([[0.5]], "numbers of the type float64"),
        ([[[1]]], "a list of such lists"),
        (["some text"], "the corpus is texts; name the tokenizer"),
        ([1, "some text"], "lists of ids; got 'some text'"),
        (7, "got int"),
    ],
)
def test_no_such_corpus(corpus: Any, message: str, target: Any, good: Any) -> None:
    with pytest.raises(ValueError, match=message):
        mmspec.enable(target, "vocab-trim", drafter=good, corpus=corpus, keep=20)


def test_files_that_are_no_text(tmp_path: Path, target: Any, good: Any) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "ids.json").write_text("[[1, 2], [3]]")
    call = dict(drafter=good, keep=20, tokenizer="mmspec/text-1m")
    with pytest.raises(ValueError, match="the corpus is empty"):
        mmspec.enable(target, "vocab-trim", corpus=tmp_path / "empty.txt", **call)
    with pytest.raises(ValueError, match=r"binary cannot be read: .*decode"):
        mmspec.enable(target, "vocab-trim", corpus=str(tmp_path / "binary"), **call)
    drafter = VocabTrim(VocabTrimOptions(model=good, keep=5, corpus=tmp_path / "ids.json"))
    drafter.bind(TransformersTarget(target))
    assert drafter.kept is not None and {1, 2, 3} <= set(drafter.kept)


def test_layers_that_cannot_be_cut(make_llama: Any) -> None:
    class Scaled(nn.Linear):
        """A layer of its own kind."""

    model: PreTrainedModel = make_llama()
    target = TransformersTarget(model, drafting=True)
    with pytest.raises(ValueError, match="ids out of 0 … 130, at least one"):
        CutHeadTarget(target, [3, 131])
    with pytest.raises(ValueError, match="at least one"):
        CutHeadTarget(target, [])
    head = model.lm_head
    model.lm_head = Scaled(64, 131, bias=False)
    with pytest.raises(ValueError, match=r"only a plain linear output layer can be cut, .* has Scaled"):
        CutHeadTarget(target, [3])
    model.lm_head = head
    model.forward = type(model).forward.__get__(model)
    with pytest.raises(ValueError, match="returns 131 logits whatever rows its output layer has"):
        CutHeadTarget(target, [3])
