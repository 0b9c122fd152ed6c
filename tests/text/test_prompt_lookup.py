"""`prompt-lookup` against the slowest way to say the same thing."""

import random
from types import SimpleNamespace

import pytest
import torch

from mmspec.core.state import HostCopy
from mmspec_text.drafters.prompt_lookup import PromptLookup, PromptLookupOptions


def reference(tokens: list[int], k: int, longest: int, shortest: int) -> list[int] | None:
    """The longest n-gram that ends the text and stood before; the latest such place; what followed, round and round."""
    last = len(tokens) - 1
    for n in range(longest, shortest - 1, -1):
        for end in range(last - 1, n - 2, -1):
            if tokens[end + 1 - n : end + 1] == tokens[last + 1 - n :] and n <= len(tokens):
                text = list(tokens)
                for _ in range(k):
                    text.append(text[len(text) - (last - end)])
                return text[last + 1 :]
    return None


def propose(
    rows: list[list[int]], given: int, k: int, options: PromptLookupOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Drafts `[batch, k]` and their validity, for rows that have `given` prompt slots, padded on the left."""
    lengths = [len(row) for row in rows]
    pads = [random.randint(max(0, given - n), given - 1) if n < given else 0 for n in lengths]
    emitted = [n - (given - p) for n, p in zip(lengths, pads, strict=True)]
    # What is padding, and what is not known yet, is noise: a drafter that reads it proposes other things.
    history = torch.randint(4, (len(rows), given + max(emitted) + 4))
    for b, row in enumerate(rows):
        history[b, pads[b] : pads[b] + len(row)] = torch.tensor(row)
    state = SimpleNamespace(
        history=history,
        prompt_length=given,
        host=HostCopy(emitted, [False] * len(rows)),
        pads=torch.tensor(pads),
        known=torch.tensor(emitted) + given,
    )
    draft = PromptLookup(options).propose(state, k, None)
    return draft.units, draft.valid


@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (1, 3), (2, 3), (3, 5), (4, 4)])
def test_random_histories(shortest: int, longest: int) -> None:
    random.seed(shortest * 10 + longest)
    torch.manual_seed(0)
    options, found, missed = PromptLookupOptions(max_ngram=longest, min_ngram=shortest), 0, 0
    for _ in range(120):
        vocab, k, given = random.choice([2, 3, 4, 9]), random.randint(1, 9), random.randint(1, 16)
        rows = [[random.randrange(vocab) for _ in range(random.randint(2, 30))] for _ in range(random.randint(1, 4))]
        units, valid = propose(rows, given, k, options)
        for b, row in enumerate(rows):
            right = reference(row, k, longest, shortest)
            assert valid[b].tolist() == [right is not None] * k
            found, missed = found + (right is not None), missed + (right is None)
            assert right is None or units[b].tolist() == right
    assert found > 20 and missed > 20


def test_the_reference_does_what_the_paper_says() -> None:
    assert reference([1, 2, 3, 9, 1, 2, 5, 1, 2], 2, 3, 2) == [5, 1]  # the most recent of two
    assert reference([7, 1, 2, 3, 9, 1, 2, 5, 7, 1, 2], 2, 3, 2) == [3, 9]  # the longer of two
    assert reference([4, 8, 4, 8], 5, 3, 2) == [4, 8, 4, 8, 4]  # a loop is drafted in full
    assert reference([4, 4, 4], 3, 3, 2) == [4, 4, 4]
    assert reference([1, 2, 3, 4], 3, 3, 2) is None
    assert reference([1, 2, 1], 1, 3, 2) is None and reference([1, 2, 1], 1, 3, 1) == [2]


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match=r"min_ngram \(4\) must not exceed max_ngram \(3\)"):
        PromptLookupOptions(min_ngram=4)
