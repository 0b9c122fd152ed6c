"""LLMCad: two rounds by hand, and how the threshold moves."""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_text.drafters.llmcad import LLMCad, LLMCadOptions, adapted, behind_share
from tests.support import random_models


def counting(step: int, sure: float) -> MarkovTarget:
    """A model that takes the unit `step` further on of seven with the probability `sure`, and the others alike."""
    table = torch.full((7, 7, 7), (1 - sure) / 6)
    for unit in range(7):
        table[:, unit, (unit + step) % 7] = sure
    return MarkovTarget(table.log())


def test_two_rounds_by_hand() -> None:
    """The target counts by ones. The small model does, too, and is sure by a half; α is 0.2 at first.

    Round 1: a branch of one unit has 1 / 2, of two 1 / 4, of three 1 / 8 < 0.2: three levels are drafted. Of seven
    nodes, the best are the chain 2, 3, 4 and the likeliest of its siblings. All three are accepted: α = 0.1.
    Round 2: 1 / 16 < 0.1, so that there are four levels: 6, 0, 1, 2.
    """
    drafter = LLMCad(LLMCadOptions(model=random_models.small(), threshold=0.2, width=2, nodes=7))
    drafter.bind = lambda target: None  # type: ignore[method-assign]
    drafter.model = counting(1, 0.5)
    decoder = Decoder(counting(1, 0.9), drafter, k=6)
    state = decoder.start(torch.tensor([[6, 0]]), 20, warp=Warp.sampling(temperature=0))
    alphas, longest, branches, emitted = [], [], [], []
    for _ in range(2):
        decoder.advance(state)
        draft = state.step.draft
        deep = draft.index.depth * draft.valid
        leaf = int(deep.argmax())
        path = draft.units[0][draft.index.ancestor[0, leaf]].tolist()
        longest.append(int(deep.max()))
        branches.append(path)
        emitted.append(int(state.step.count))
        alphas.append(float(state.memory.alpha))
    assert longest == [3, 4] and emitted == [4, 5]
    assert branches == [[1, 2, 3, 4], [5, 6, 0, 1, 2]]  # each behind its root
    assert alphas == pytest.approx([0.1, 0.05])


def test_branches_have_their_shares_by_hand() -> None:
    """Of eight nodes: branches of 0.6, 0.3 and 0.1 have 4.8, 2.4 and 0.8; one that is none has nothing."""
    score = torch.tensor([[0.6, 0.3, 0.1, 0.0]]).log() - 2
    going = torch.stack([behind_share(score, 8, length)[0] for length in range(8)])
    assert going.sum(0).tolist() == [5, 3, 1, 0], "lengths from 0 on at which each goes on"
    assert not behind_share(torch.full((1, 2), -torch.inf), 8, 0).any()


def test_the_threshold_by_hand() -> None:
    """Halved where all was right; divided by T_c to the share of what was wrong; not changed without a draft."""
    alpha = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.9])
    longest, accepted = torch.tensor([4, 4, 4, 0, 2]), torch.tensor([4, 2, 0, 0, 0])
    best = torch.tensor([0.25, 0.25, 0.5, 1.0, 0.04]).log()
    expected = [0.05, 0.1 / 0.25**0.5, 0.2, 0.1, 0.99]
    assert adapted(alpha, longest, accepted, best).tolist() == pytest.approx(expected)
