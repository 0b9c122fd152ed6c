"""Drafters in plain Python: lists in, lists out."""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.host import HostDrafterAdapter
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection
from mmspec.testing.toys.history import HistoryTarget

LARGE = HistoryTarget.random(5, seed=0)
PROMPT = (torch.tensor([[0, 0, 1], [2, 3, 3], [0, 4, 4]]), torch.tensor([1, 0, 2]))


class Author:
    """Copies the oldest units it knows, a different number for every row; remembers what it was shown."""

    def __init__(self) -> None:
        self.shown: list[list[list[int]]] = []

    def propose(self, tokens, k):
        self.shown.append(tokens)
        return [row[: (len(row) + i) % 4] for i, row in enumerate(tokens)]


class Fixed:
    def __init__(self, drafts) -> None:
        self.drafts = drafts

    def propose(self, tokens, k):
        return self.drafts


@pytest.mark.parametrize("rule", [Match(), Rejection(), Block(), RecursiveRejection()])
def test_the_author_sees_prompts_without_padding_and_all_that_was_emitted(rule):
    author = Author()
    output = Decoder(LARGE, HostDrafterAdapter(author), rule, k=3).generate(PROMPT, 12, seed=1)
    prompts = [[0, 1], [2, 3, 3], [4]]
    final = [p + units.tolist() for p, units in zip(prompts, output.units, strict=True)]
    for tokens in author.shown:
        assert all(
            row == whole[: len(row)] and len(row) > len(p) for row, whole, p in zip(tokens, final, prompts, strict=True)
        )
    lengths = [[len(row) for row in tokens] for tokens in author.shown]
    assert lengths == sorted(lengths) and output.report.drafted > 0


def test_any_draft_leaves_the_plain_output():
    plain = Decoder(LARGE).generate(PROMPT, 20, seed=1).units
    for author in (Author(), Fixed([[], [], []]), Fixed([[4, 4, 4], [], [0]]), Fixed([(1,), [2] * 9, range(3)])):
        drafted = Decoder(LARGE, HostDrafterAdapter(author), k=3).generate(PROMPT, 20, seed=1).units
        assert all(torch.equal(a, b) for a, b in zip(plain, drafted, strict=True))


def test_a_right_guess_is_accepted():
    plain = Decoder(LARGE).generate(PROMPT, 21, seed=1).units

    class Oracle:
        def propose(self, tokens, k):
            prompts = (2, 3, 1)
            return [whole[len(row) - p :][:k].tolist() for row, p, whole in zip(tokens, prompts, plain, strict=True)]

    report = Decoder(LARGE, HostDrafterAdapter(Oracle()), k=4).generate(PROMPT, 21, seed=1).report
    assert report.rounds == 4 and report.acceptance_length == 5 and report.acceptance_rate == 1


@pytest.mark.parametrize(
    ("drafts", "said"),
    [
        ([[5], [], []], "proposed id 5; ids are 0 … 4"),
        ([[], [-1], []], "proposed id -1; ids are 0 … 4"),
        ([[1], [1]], "returned 2 rows for 3"),
        ([], "returned 0 rows for 3"),
    ],
)
def test_bad_drafts_are_named(monkeypatch, drafts, said):
    monkeypatch.setenv("MMSPEC_STRICT", "1")
    with pytest.raises(ValueError, match=said):
        Decoder(LARGE, HostDrafterAdapter(Fixed(drafts)), k=3).generate(PROMPT, 8)


def test_ids_beyond_k_are_not_looked_at():
    output = Decoder(LARGE, HostDrafterAdapter(Fixed([[1, 1, 99]] * 3)), k=2).generate(PROMPT, 8)
    assert output.report.faults == 0
