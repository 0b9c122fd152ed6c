"""`suffix`: its counts against counting by hand, and its corpora."""

import json
import math
import random
from collections import Counter
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
from mmspec_text.drafters.suffix import Suffix, SuffixOptions
from mmspec_text.drafters.suffix_statistics import NgramCounts, RecentCounts, SuffixArray

TOKENIZER = "mmspec/text-1m"


def by_hand(
    documents: list[list[int]], text: list[int], shortest: int, longest: int
) -> tuple[Counter[int], dict[int, int], int] | None:
    """After the longest suffix of `text` that is followed by anything: counts, where each came last, its length."""
    for n in range(min(longest, len(text)), shortest - 1, -1):
        counts, latest = Counter(), {}
        for d, document in enumerate(documents):
            for i in range(n, len(document)):
                if document[i - n : i] == text[-n:]:
                    counts[document[i]] += 1
                    latest[document[i]] = (d, i)
        if counts:
            return counts, latest, n
    return None


def matches(guess: Any, right: Any, tie: Callable[[int], Any]) -> None:
    if right is None:
        assert guess is None
        return
    counts, latest, n = right
    top = max(counts.values())
    best = max((unit for unit in counts if counts[unit] == top), key=lambda unit: tie(latest[unit], unit))
    assert (guess.unit, guess.count, guess.total, guess.matched) == (best, top, sum(counts.values()), n)
    assert guess.chance == top / (sum(counts.values()) + 3 / n**1.5)


@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (1, 4), (2, 3), (3, 6)])
def test_counts_of_a_growing_text(shortest: int, longest: int) -> None:
    random.seed(shortest * 10 + longest)
    found = missed = 0
    for _ in range(60):
        vocab, seen, text = random.choice([2, 3, 6, 30]), NgramCounts(shortest, longest), list[int]()
        for _ in range(random.randint(1, 8)):
            new = [random.randrange(vocab) for _ in range(random.randint(0, 9))]
            seen.extend(text, new)
            text += new
            right = by_hand([text], text, shortest, longest)
            matches(seen.guess(text), right, lambda latest, unit: latest)
            found, missed = found + (right is not None), missed + (right is None)
    assert found > 40 and missed > 40


@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (1, 4), (2, 3), (3, 6)])
def test_corpus(shortest: int, longest: int) -> None:
    random.seed(shortest * 10 + longest)
    found = missed = 0
    for trial in range(40):
        ids = random.sample(range(100_000), random.choice([2, 3, 6, 30]))
        documents = [random.choices(ids, k=random.randint(1, 40)) for _ in range(random.randint(1, 4))]
        corpus = SuffixArray(documents if trial % 2 else documents[0], shortest, longest)
        assert corpus.largest == max(max(d) for d in (documents if trial % 2 else documents[:1]))
        for _ in range(10):
            text = random.choices([*ids, 5], k=random.randint(0, 7))
            right = by_hand(documents if trial % 2 else documents[:1], text, shortest, longest)
            matches(corpus.guess(text), right, lambda latest, unit: -unit)
            found, missed = found + (right is not None), missed + (right is None)
    assert found > 20 and missed > 40


def test_ids_beyond_16_bits_stay_apart() -> None:
    """70,000 and 4,464 are the same number in 16 bits: REST's published index takes one for the other."""
    corpus = SuffixArray([70_000, 1, 4_464, 2, 70_000, 1, 200_000, 131_072 + 9], 1, 4)
    assert corpus.guess([70_000]).unit == 1 and corpus.guess([4_464]).unit == 2
    assert corpus.guess([200_000]).unit == 131_081 and corpus.guess([131_081]) is None
    torch.manual_seed(0)
    big = torch.randint(65_536, 150_000, (50_000,))
    corpus, place = SuffixArray(big, 1, 8), 31_000
    assert corpus.guess(big[place - 5 : place].tolist()).unit == int(big[place])


def test_a_large_corpus_of_one_token() -> None:
    guess = SuffixArray(np.zeros(20_000, np.int64), 1, 16).guess([0] * 30)
    assert (guess.unit, guess.count, guess.matched) == (0, 20_000 - 16, 16)


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
    drafted, survival, whole = [], 1.0, list(text)
    for _ in range(k):
        right = by_hand([text], whole, options.min_match, options.max_match)
        if right is None:
            break
        counts, latest, n = right
        unit = max(counts, key=lambda u: (counts[u], latest[u]))
        survival *= counts[unit] / (sum(counts.values()) + 3 / n**1.5)
        if survival < options.threshold:
            break
        drafted.append((unit, math.log(survival)))
        whole.append(unit)
    return drafted


@pytest.mark.parametrize(("threshold", "lengths"), [(0.0, {0, 5}), (0.1, {0, 1, 2, 3}), (0.4, {0, 1})])
def test_drafts_of_ragged_rows_that_grow(threshold: float, lengths: set[int]) -> None:
    random.seed(3)
    torch.manual_seed(3)
    options, given, met = SuffixOptions(max_match=4, threshold=threshold), 8, set()
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


def test_the_longest_suffix_speaks_and_the_row_itself_before_the_corpus() -> None:
    drafter = Suffix(SuffixOptions(threshold=0, corpus=[1, 2, 3, 9, 9, 2, 3, 7]))
    for text, expected in (
        ([1, 2, 3], 9),  # three units, in the corpus only
        ([2, 3, 5, 2, 3], 5),  # two units in both
        ([4, 1, 2, 3, 6, 4, 1, 2, 3], 6),  # four units in the text
    ):
        state = state_of([text], 2, [0])
        state.memory = drafter.start(state, None)
        assert drafter.propose(state, 1, None).units.tolist() == [[expected]]


def test_earlier_calls_are_remembered_if_asked(target: Any, prompts: Callable) -> None:
    call = dict(do_sample=False, max_new_tokens=40)
    for remember, warm in ((0, False), (500, True)):
        with mmspec.enable(target, drafter=Suffix(SuffixOptions(remember=remember))) as spec:
            lengths = []
            for _ in range(2):
                target.generate(**prompts(2), **call)
                lengths.append(spec.report.acceptance_length)
        assert (lengths[1] > lengths[0] + 1) == warm and (warm or lengths[0] == lengths[1]), lengths


def test_recent_forgets_by_generations() -> None:
    recent = RecentCounts(20, 1, 3)
    recent.extend([], [1, 2])
    for i in range(5):
        recent.extend([], [50 + i] * 5)
        assert (recent.guess([1]) is not None) == (i < 4), i
    assert recent.guess([54]).unit == 54


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
        drafter = Suffix(SuffixOptions(threshold=0.05, **way))
        state = state_of([ids[:6]], 3, [0])
        state.memory = drafter.start(state, None)
        assert drafter.propose(state, 4, None).units[0].tolist() == ids[6:10], way


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
