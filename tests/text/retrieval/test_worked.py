"""Retrieved drafts by hand: REST's trie in two successive rounds, and against brute force; RASD's union."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.growing import Scratch
from mmspec.core.types import Draft, Step, Verdict
from mmspec.core.warp import Warp
from mmspec.hosts.loading import load_tokenizer
from mmspec.kits.text.corpus import read_corpus
from mmspec.testing import tiny_models
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_text.drafters.retrieval.rasd import Rasd, RasdOptions
from mmspec_text.drafters.retrieval.rest import Rest, RestOptions, SuffixArray, most_frequent
from tests.support import random_models

TEXTS = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 3, 0], [2, 3, 4, 5, 6]]


def counting(size: int) -> MarkovTarget:
    """A target that counts 0, 1, … and begins again."""
    table = torch.zeros(size, size, size)
    for unit in range(size):
        table[:, unit, (unit + 1) % size] = 9.0
    return MarkovTarget(table)


def test_two_rounds_of_rest_by_hand() -> None:
    """The target counts. The prefill emits 2. The datastore has `1 2` three times and `0 1 2` never: 3 (3 times), 3 4
    (2), 3 0, 3 4 5 and 3 4 6 (once each; of equals the shorter, then the smaller id). Accepted are 3, 4 and 5, then
    comes 6. `4 5 6` is there once, at the end of a text, so that no suffix has a continuation.
    """
    decoder = Decoder(counting(7), Rest(RestOptions(corpus=TEXTS, max_match=3, min_match=2, nodes=4)), k=3)
    state = decoder.start(torch.tensor([[0, 1]]), 12, warp=Warp.sampling(temperature=0))
    drafts = []
    for _ in range(2):
        decoder.advance(state)
        draft = state.step.draft
        drafts.append((draft.drafted[0].tolist(), (draft.index.parent[0, 1:] - 1).tolist(), state.host.emitted[0]))
        if len(drafts) == 1:
            shares = draft.score[0].exp().tolist()
    assert drafts == [([3, 4, 0, 5], [-1, 0, 0, 1], 1 + 4), ([], [], 6)]
    assert shares == pytest.approx([1, 2 / 3, 1 / 3, 1 / 3])


def test_the_suffix_is_the_longest_one_and_falls_back() -> None:
    corpus = SuffixArray(TEXTS, 1, 4)
    found, matched = corpus.continuations([9, 2, 3, 4], 10, 3)
    assert matched == 3 and sorted(map(tuple, found.tolist())) == [(5, -1, -1), (5, 6, -1), (6, -1, -1)]
    found, matched = corpus.continuations([9, 5, 3], 10, 2)
    assert matched == 1 and sorted(map(tuple, found.tolist())) == [(0, -1), (4, 5), (4, 5), (4, 6)]
    assert corpus.continuations([9], 10, 2)[1] == 0


def test_continuations_and_prefixes_equal_brute_force() -> None:
    random.seed(3)
    for _ in range(40):
        vocab, length, nodes = random.choice([2, 4, 9]), random.randint(1, 5), random.randint(1, 12)
        texts = [[random.randrange(vocab) for _ in range(random.randint(1, 30))] for _ in range(3)]
        shortest, longest = random.choice([(1, 2), (2, 4), (1, 6)])
        text = [random.randrange(vocab) for _ in range(8)]
        found, matched = SuffixArray(texts, shortest, longest).continuations(text, 10**6, length)
        expected: list[tuple[int, ...]] = []
        for n in range(longest, shortest - 1, -1):
            for one in texts:
                ends = [i for i in range(n, len(one)) if one[i - n : i] == text[-n:]]
                expected += [tuple(one[i : i + length]) for i in ends]
            if expected:
                break
        assert Counter(tuple(unit for unit in row if unit >= 0) for row in found.tolist()) == Counter(expected)
        assert matched == (n if expected else 0)
        prefixes = Counter(one[:end] for one in expected for end in range(1, len(one) + 1))
        tree, paths = most_frequent(found, nodes), list[tuple[int, ...]]()
        for node in tree:
            paths.append((*(paths[node.parent] if node.parent >= 0 else ()), node.unit))
            assert node.times == prefixes[paths[-1]]
        kept = sorted(prefixes.values(), reverse=True)[:nodes]
        assert len(set(paths)) == len(paths) and [node.times for node in tree] == kept


def test_of_many_places_even_ones_are_taken() -> None:
    """The first ones would all go on with 0: the order of places is that of their continuations."""
    corpus = SuffixArray([[7, unit % 4] for unit in range(400)], 1, 2)
    found, _ = corpus.continuations([7], 8, 1)
    assert Counter(found[:, 0].tolist()) == {0: 2, 1: 2, 2: 2, 3: 2}


def rasd(**options: Any) -> Rasd:
    return Rasd(RasdOptions(model=random_models.small(), width=3, nodes=6, **options))


def test_rasd_is_the_models_tree_with_more_behind_it() -> None:
    model, inputs = tiny_models.llama(), tiny_models.prompt([0, 1])
    call = dict(max_new_tokens=30, do_sample=True, temperature=0.7, pad_token_id=0, eos_token_id=None)
    torch.manual_seed(0)
    text = model.generate(**inputs, **call)
    reports = {}
    for name, corpus in (("its own output", text.tolist()), ("nothing", [[1]])):
        with mmspec.enable(model, drafter=rasd(corpus=corpus, retrieved=8), k=4) as spec:
            torch.manual_seed(0)
            assert torch.equal(model.generate(**inputs, **call), text)
            reports[name] = spec.report
    with mmspec.enable(model, "draft-tree", drafter=random_models.small(), k=4, width=3, nodes=6) as spec:
        torch.manual_seed(0)
        model.generate(**inputs, **call)
        alone = spec.report
    assert reports["nothing"].rounds == alone.rounds and reports["nothing"].accepted == alone.accepted
    assert reports["its own output"].rounds < alone.rounds and not reports["its own output"].faults


def test_a_path_is_committed_as_far_as_it_was_fed() -> None:
    """The model was fed the root and one node, of a draft with three nodes behind its two: its cache ends there."""
    fed = Draft.chain(torch.tensor([[5]])).rooted(torch.tensor([4]), torch.tensor([9]))
    scratch = Scratch(fed, torch.tensor([[0, 1, -1]]))
    draft = Draft.chain(torch.tensor([[5, 6, 7, 8, 9]])).rooted(torch.tensor([4]), torch.tensor([9]))
    verdict = Verdict(torch.tensor([[1, 2, 3, 4, -1]]), torch.tensor([4]), torch.tensor([3]), draft.units)
    path, count = scratch.follow(Step(draft, None, verdict, torch.tensor([5])))  # type: ignore[arg-type]
    assert path.tolist() == [[1]] and count.tolist() == [2]


def test_a_text_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(f"line {number} of a text\r\n" for number in range(200)) + "the end"
    (tmp_path / "corpus.txt").write_text(lines, newline="")
    tokenizer = load_tokenizer("mmspec/text-1m")
    whole = read_corpus(tmp_path / "corpus.txt", tokenizer)
    assert tokenizer.decode(whole) == lines
    monkeypatch.setattr("mmspec.kits.text.corpus.PIECE", 100)
    calls = list[str]()

    def counted(text: str, **options: Any) -> Any:
        calls.append(text)
        return tokenizer(text, **options)

    pieces = read_corpus(tmp_path / "corpus.txt", counted)
    assert len(calls) > 20 and "".join(calls) == lines and tokenizer.decode(pieces) == lines
    assert pieces.dtype == np.int32


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "no texts to look up: corpus=<a text file>"),
        ({"corpus": "nowhere.txt"}, "no corpus at nowhere.txt"),
        ({"corpus": __file__}, "name the tokenizer that makes ids of it"),
        ({"corpus": []}, "the corpus is empty"),
        ({"corpus": [[1, -3]]}, "token ids are 0"),
    ],
)
def test_bad_datastores(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Rest(RestOptions(**options))


def test_files_that_are_no_texts(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ValueError, match="binary cannot be read"):
        Rest(RestOptions(corpus=tmp_path / "binary", tokenizer="mmspec/text-1m"))
    with pytest.raises(ValueError, match="the corpus is empty"):
        Rest(RestOptions(corpus=tmp_path / "empty.txt", tokenizer="mmspec/text-1m"))


def test_ids_of_another_tokenizer_are_refused() -> None:
    model = tiny_models.llama()
    with pytest.raises(ValueError, match="made with another tokenizer"):
        mmspec.enable(model, "rest", corpus=[[1, 10**6]])
