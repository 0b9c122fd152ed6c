"""`suffix`: its places and drafts against brute force, what it remembers, and its corpora."""

import copy
import json
import math
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import mmspec
from mmspec.core.state import HostCopy
from mmspec.hosts.loading import load_tokenizer
from mmspec.testing import tiny_models
from mmspec_text.drafters.suffix import Node, Suffix, SuffixOptions, SuffixRow, SuffixTree
from mmspec_text.drafters.suffix_texts import Found, Remembered, Written

TOKENIZER = "mmspec/text-1m"


def by_hand(texts: list[list[int]], tail: list[int], length: int) -> list[tuple[int, tuple[int, ...]]]:
    """Every place in texts behind a suffix of `tail`: how many units of it, and what follows; the latest first."""
    found = list[tuple[int, tuple[int, ...]]]()
    for text in texts:
        for place in range(1, len(text)):
            matched = 0
            while matched < min(place, len(tail)) and text[place - 1 - matched] == tail[-1 - matched]:
                matched += 1
            if matched:
                found.insert(0, (matched, tuple(text[place : place + length])))
    return found


def as_list(found: Found) -> list[tuple[int, tuple[int, ...]]]:
    rows = zip(found.matched.tolist(), found.behind.tolist(), strict=True)
    return [(matched, tuple(unit for unit in behind if unit >= 0)) for matched, behind in rows]


def test_places_are_those_that_brute_force_finds() -> None:
    """Texts in many blocks and in one, of few units, so that suffixes are long, and of many."""
    random.seed(3)
    longest = 0
    for _ in range(60):
        vocab, length = random.choice([2, 5, 200_000]), random.randint(1, 64)
        texts = [random.choices(range(vocab), k=random.randint(1, 600)) for _ in range(3)]
        texts.append(texts[0][:250])
        tail = random.choice(texts)[: random.randint(1, 300)][-64:]
        remembered = Remembered(10_000)
        for text in texts:
            half, block = len(text) // 3, None
            for before, units in ((0, text[:half]), (half, text[half:])):
                block = remembered.add(text[:before], units, block)
        for source, known in ((remembered, texts), (Written(texts[0]), texts[:1])):
            found = as_list(source.found(np.array(tail, np.int32), 10**6, length))
            expected = by_hand(known, tail, length)
            if source is remembered:  # what goes on in a later block may not be found where a text has several parts
                assert [n for n, _ in found] == [n for n, _ in expected]
                assert all(mine == right[: len(mine)] for (_, mine), (_, right) in zip(found, expected, strict=True))
                assert sum(mine == right for mine, right in zip(found, expected, strict=True)) >= 0.5 * len(found)
            else:
                assert found == expected
            longest = max(longest, *(n for n, _ in expected), 0)
    assert longest == 64


def test_the_latest_places_of_every_length_are_found() -> None:
    """`1 2` is rare and long ago, `2` is everywhere: both are there, and of the latter the latest."""
    text = [7, 1, 2, 3] + [9, 2] * 500 + [5, 2]
    for source in (Written(text), Remembered(2_000)):
        if isinstance(source, Remembered):
            source.add([], text)
        found = source.found(np.array([7, 1, 2], np.int32), 8, 1)
        assert found.matched.tolist().count(3) == 1 and int(found.behind[found.matched == 3, 0][0]) == 3
        assert 8 <= len(found.places) <= 20 and found.behind[0, 0] in (5, 9)


def test_a_text_without_a_place_leaves_those_of_the_others() -> None:
    """A row's sibling that has just begun, or went elsewhere, has nothing to add."""
    tail = np.array([5], np.int32)
    other, here = Written([1, 2]).found(tail, 4, 2), Written([5, 6, 7, 5]).found(tail, 4, 2)
    assert as_list(Found.joined([other, here])) == as_list(Found.joined([here, other])) == [(1, (6, 7))]
    assert as_list(Found.joined([other, other])) == []


def test_ids_beyond_16_bits_stay_apart() -> None:
    """70,000 and 4,464 are the same number in 16 bits: REST's published index takes one for the other."""
    corpus = Remembered(1_000)
    corpus.add([], [70_000, 1, 4_464, 2, 70_000, 1, 200_000, 131_072 + 9])
    assert set(corpus.found(np.array([70_000], np.int32), 9, 1).behind[:, 0].tolist()) == {1}
    assert corpus.found(np.array([4_464], np.int32), 9, 1).behind.tolist() == [[2]]


def test_what_was_used_stays_longer() -> None:
    """Four blocks, a text each. The one that is used in every round stays; the other goes in its turn."""
    remembered, kept, left = Remembered(4 * 192), list(range(1000, 1100)), list(range(2000, 2100))
    remembered.add([], kept)
    remembered.add([], left)
    there = []
    for number in range(12):
        found = remembered.found(np.array(kept[:9], np.int32), 4, 3)
        assert as_list(found)[0] == (9, tuple(kept[9:12])), number
        remembered.use(found.places)
        there.append(bool(len(remembered.found(np.array(left[:9], np.int32), 4, 3).places)))
        remembered.add([], list(range(100 * number, 100 * number + 100)))
    assert there[:3] == [True] * 3 and not any(there[3:])
    for number in range(8):
        remembered.add([], list(range(5000 + 100 * number, 5100 + 100 * number)))
    assert not len(remembered.found(np.array(kept[:9], np.int32), 4, 3).places)


def state_of(rows: list[list[int]], given: int, pads: list[int], done: list[bool] | None = None) -> Any:
    """A call whose rows have `given` prompt slots, of which `pads` are padding; what is not known is noise."""
    emitted = [len(row) + p - given for row, p in zip(rows, pads, strict=True)]
    history = torch.randint(4, (len(rows), given + max(emitted) + 4))
    for b, row in enumerate(rows):
        history[b, pads[b] : pads[b] + len(row)] = torch.tensor(row)
    return SimpleNamespace(
        history=history,
        prompt_length=given,
        host=HostCopy(emitted, done or [False] * len(rows), pads),
        rows=len(rows),
        root=history[:, 0],
    )


def reference(text: list[int], k: int, options: SuffixOptions) -> list[tuple[int, float]]:
    """The draft of a row: units, and the logarithm of what each path's chance is."""
    places, best = by_hand([text], text[-options.max_match :], k), list[tuple[int, float]]()
    for length in range(options.max_match, options.min_match - 1, -1):
        behind, draft, chance = [units for n, units in places if n >= length], list[tuple[int, float]](), 1.0
        total = len(behind) + 1
        while len(draft) < min(k, int(length * options.factor)):
            at = len(draft)
            nexts = [units[at] for units in behind if len(units) > at]
            if not nexts:
                break
            unit = max(nexts, key=lambda unit: (nexts.count(unit), -nexts.index(unit)))
            chance *= nexts.count(unit) / total
            if chance < options.threshold:
                break
            draft.append((unit, chance))
            behind = [units for units in behind if len(units) > at and units[at] == unit]
            total = len(behind)
        if sum(chance for _, chance in draft) > sum(chance for _, chance in best) + 1e-9:
            best = draft
    return [(unit, math.log(chance)) for unit, chance in best]


@pytest.mark.parametrize(("threshold", "lengths"), [(0.0, {0, 1, 5}), (0.1, {0, 1, 2, 5}), (0.45, {0, 1, 5})])
def test_drafts_of_ragged_rows_that_grow(threshold: float, lengths: set[int]) -> None:
    random.seed(3)
    torch.manual_seed(3)
    options, given, met = SuffixOptions(max_match=4, threshold=threshold, factor=1.5, remember=0), 8, set()
    for _ in range(25):
        texts = [random.choices(range(random.choice([2, 4, 9])), k=40) for _ in range(3)]
        pads = [random.randint(0, 7) for _ in texts]
        cuts, drafter, memory = [given - p + random.randint(1, 5) for p in pads], Suffix(options), None
        for _ in range(3):
            done = [random.random() < 0.2 for _ in texts]
            state = state_of([t[:c] for t, c in zip(texts, cuts, strict=True)], given, pads, done)
            state.memory = memory = drafter.start(state, None) if memory is None else memory
            draft = drafter.propose(state, 5, None)
            for b, text in enumerate(texts):
                right = [] if done[b] else reference(text[: cuts[b]], 5, options)
                met.add(len(right))
                assert draft.units[b][draft.valid[b]].tolist() == [unit for unit, _ in right]
                assert draft.score[b][draft.valid[b]].tolist() == pytest.approx([s for _, s in right], abs=1e-5)
                assert draft.valid[b].tolist() == [i < len(right) for i in range(draft.valid.shape[1])]
            cuts = [c + random.randint(0, 4) for c in cuts]
    assert met >= lengths


def drafted(drafter: Suffix, text: list[int], k: int = 4) -> list[Node]:
    row = SuffixRow(written := Written(text), [written])
    return drafter.continued(row, written.units, k)


def test_the_draft_that_is_expected_to_bring_most() -> None:
    """Behind `1 2` came 3 once; behind `2` came 4 4 three times, and 3. As chances: 1/2, and for one unit 3/5."""
    text = [5, 2, 4, 4, 6, 2, 4, 4, 7, 2, 4, 4, 1, 2, 3, 8, 1, 2]
    assert drafted(Suffix(), text) == [Node(3, -1, 1 / 2), Node(8, 0, 1 / 2)]
    assert drafted(Suffix(SuffixOptions(factor=0.5)), text) == [Node(3, -1, 1 / 2)]
    longer = drafted(Suffix(SuffixOptions(factor=2.0)), text)
    assert [node.unit for node in longer] == [3, 8, 1, 2]
    assert drafted(Suffix(SuffixOptions(max_match=1)), text) == [Node(4, -1, 3 / 5)]
    assert drafted(Suffix(SuffixOptions(threshold=0.55)), text) == [Node(4, -1, 3 / 5)], "a shorter suffix is surer"
    assert drafted(Suffix(SuffixOptions(threshold=0.7)), text) == []


def test_the_row_speaks_before_the_corpus_if_it_expects_as_much() -> None:
    drafter = Suffix(SuffixOptions(corpus=[1, 2, 3, 9, 9, 2, 3, 7]))
    assert [node.unit for node in drafted(drafter, [1, 2, 3], 1)] == [9], "in the corpus only"
    assert [node.unit for node in drafted(drafter, [4, 1, 2, 3, 6, 4, 1, 2, 3], 1)] == [6], "in both"


def test_a_tree_has_several_continuations() -> None:
    """Behind `1 2 3` came 4 5 twice, 4 6 and 7: of 5 places with the end 3/5 for 4, 2/5 for 4 5, 1/5 for the others."""
    text = [*[1, 2, 3, 4, 5] * 2, 1, 2, 3, 7, 1, 2, 3, 4, 6, 1, 2, 3]
    one = SuffixTree(SuffixOptions(max_match=3, factor=2.0))
    tree = drafted(one, text, 4)
    assert [node[:2] for node in tree] == [(4, -1), (5, 0), (1, 1), (2, 2)]
    assert [node.chance for node in tree] == pytest.approx([3 / 5, 2 / 5, 2 / 5, 2 / 5])
    wide = drafted(SuffixTree(SuffixOptions(max_match=1, factor=4.0, threshold=0.15)), [1, 2, 1, 3, 1, 4, 1], 4)
    assert {(node.unit, node.parent) for node in wide[:3]} == {(4, -1), (3, -1), (2, -1)}
    state = state_of([text, [7, 8, 9]], 3, [0, 0])
    state.memory = one.start(state, None)
    draft = one.propose(state, 4, None)
    assert draft.units[0].tolist() == [4, 5, 1, 2] and draft.valid.tolist() == [[True] * 4, [False] * 4]
    assert draft.index.parent[0].tolist() == [-1, 0, 1, 2, 3]


@pytest.mark.parametrize("method", ["suffix", "suffix-tree"])
def test_earlier_calls_are_remembered(target: Any, prompts: Callable, method: str) -> None:
    """The second of two equal calls is drafted nearly in full, its last round too, unless `remember=0`."""
    call, lengths = dict(do_sample=False, max_new_tokens=60), dict[int, list[float]]()
    for remember in (0, 10_000):
        with mmspec.enable(target, method, k=20, remember=remember) as spec:
            texts = []
            lengths[remember] = []
            for _ in range(2):
                texts.append(target.generate(**prompts(2), **call))
                lengths[remember].append(spec.report.acceptance_length)
        assert torch.equal(*texts)
    assert lengths[0][0] == lengths[0][1] == lengths[10_000][0]
    assert lengths[10_000][1] > 8


def test_many_requests_fit() -> None:
    """A unit takes at most 100 bytes when all is full, and tables are touched as they are needed."""
    remembered = Remembered(50_000)
    held = sum(part.nbytes for part in vars(remembered).values() if isinstance(part, np.ndarray))
    assert held / 50_000 < 100


def test_corpora_as_files(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(TOKENIZER)
    text = "def area(width, height):\n    return width * height\n"
    ids = tokenizer(text)["input_ids"]
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    (tmp_path / "a.json").write_text(json.dumps(ids))
    save_file({"ids": np.array(ids, np.int32)}, tmp_path / "a.safetensors")
    ways: list[dict[str, Any]] = [
        dict(corpus=str(tmp_path / "a.txt"), tokenizer=TOKENIZER),
        dict(corpus=tmp_path / "a.txt", tokenizer=tokenizer),
        dict(corpus=str(tmp_path / "a.json")),
        dict(corpus=str(tmp_path / "a.safetensors")),
        dict(corpus=ids),
        dict(corpus=torch.tensor(ids)),
    ]
    for way in ways:
        assert [node.unit for node in drafted(Suffix(SuffixOptions(**way)), ids[:6])] == ids[6:10], way


def test_bad_corpora_are_refused(tmp_path: Path) -> None:
    files = {
        "a.txt": b"words",
        "bytes.txt": b"\xff\xfe\xff",
        "a.json": b"[1, 2",
        "b.json": b'{"a": 1}',
        "c.json": b"[]",
    }
    files |= {"d.json": b"[1.5, 2]", "e.json": b"[-3, 2]", "f.json": b"[5000000000]", "a.safetensors": b"nothing"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    save_file({"a": np.zeros(2), "b": np.zeros(2)}, tmp_path / "two.safetensors")
    for name, why in {
        "missing.txt": "no corpus at .*missing.txt; give a UTF-8 text file",
        "a.txt": "is text; name the tokenizer",
        "bytes.txt": "is text; name the tokenizer",
        "a.json": "a.json cannot be read",
        "b.json": "a list of token ids",
        "c.json": "is empty",
        "d.json": "a list of token ids",
        "e.json": "the corpus has -3",
        "f.json": "the corpus has 5000000000",
        "a.safetensors": "a.safetensors cannot be read",
        "two.safetensors": "one tensor of ids is wanted",
    }.items():
        with pytest.raises(ValueError, match=why):
            Suffix(SuffixOptions(corpus=str(tmp_path / name)))
    with pytest.raises(ValueError, match=r"token id 131 and the target's are 0 … 130"):
        Suffix(SuffixOptions(corpus=[3, 131])).bind(SimpleNamespace(vocab=131))
    with pytest.raises(ValueError, match=r"min_match \(5\) must not exceed max_match \(4\)"):
        SuffixOptions(min_match=5, max_match=4)


@pytest.mark.parametrize("method", ["auto", "suffix"])
def test_an_enabled_model_is_copied_and_stored_without_the_texts_of_its_calls(method: str) -> None:
    # A model of its own: transformers leaves hooks that no pickle takes on one that once gave its hidden states.
    model = tiny_models.llama.__wrapped__()
    prompt = {"input_ids": torch.tensor([[1, 2, 3, 1, 2]]), "attention_mask": torch.ones(1, 5, dtype=torch.int64)}
    how: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    with mmspec.enable(model, method):
        first = model.generate(**prompt, **how)
        stored = pickle.dumps(model)
        for other in (copy.deepcopy(model), pickle.loads(stored)):
            assert torch.equal(other.generate(**prompt, **how), first)
    assert len(stored) < 5_000_000


def test_a_copy_of_the_drafter_keeps_its_corpus_and_no_call() -> None:
    drafter = Suffix(SuffixOptions(corpus=[5, 6, 7, 8, 9]))
    assert drafter._earlier is not None
    drafter._earlier.add([], [11, 12, 13])
    other = copy.deepcopy(drafter)
    row = SuffixRow(Written([6, 7]), [])
    assert [node.unit for node in other.continued(row, row.text.units, 2)] == [8, 9]
    row = SuffixRow(Written([11, 12]), [])
    assert [node.unit for node in drafter.continued(row, row.text.units, 2)] == [13]
    assert other.continued(row, row.text.units, 2) == []
